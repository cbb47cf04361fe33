"""Names of the sets of the GraphTensor, and its schema, a file beside this module.

`schema.pbtxt` describes the GraphTensors and their TFRecords: the meaning, unit and shape of each
feature. `graph_tensor` builds these GraphTensors; a test compares them with the schema.
"""

from __future__ import annotations

import os

from placeto_tf.encoding.training_packages import check_training_packages

check_training_packages()

import tensorflow_gnn as tfgnn  # noqa: E402  the check must come first

SCHEMA_PATH = os.path.join(os.path.dirname(__file__), "schema.pbtxt")

# node sets
GROUP = "group"  # ops that are placed together
DEVICE = "device"  # of the cluster
# edge sets
DATAFLOW = "dataflow"  # group -> group, with the order of main ops
FEEDBACK = "feedback"  # group -> group, against that order
OPTION = "option"  # group -> device where the group may be placed
PLACEMENT = "placement"  # group -> its device
LINK = "link"  # device -> device
PAIR = "pair"  # the features of an option edge


def load_schema() -> tfgnn.GraphSchema:
  """Returns the GraphSchema of one placement."""
  return tfgnn.read_schema(SCHEMA_PATH)


def graph_tensor_spec() -> tfgnn.GraphTensorSpec:
  """Returns the spec of one placement: scalar, with sets of any size."""
  return tfgnn.create_graph_spec_from_schema_pb(load_schema())
