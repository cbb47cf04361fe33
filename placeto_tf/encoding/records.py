"""TFRecord files of GraphTensors: one serialized tf.train.Example per placement.

The features are named as TensorFlow GNN names them ("nodes/group.output_bytes"), so that any
TF-GNN input pipeline reads the files with `schema.pbtxt`.
"""

from __future__ import annotations

from typing import Iterator

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip


def read_records(path: str) -> Iterator[tfgnn.GraphTensor]:
  """Yields the scalar GraphTensors of a TFRecord file."""
  spec = schema.graph_tensor_spec()
  for record in tf.data.TFRecordDataset(path):
    yield tfgnn.parse_single_example(spec, record)
