"""TFRecord files of GraphTensors: one serialized tf.train.Example a placement.

The features are named as TensorFlow GNN names them ("nodes/group.output_bytes"), so that any
TF-GNN input pipeline reads the files with `schema.pbtxt`.
"""

from __future__ import annotations

import os
from typing import Iterable, Iterator

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip


def write_records(path: str, graphs: Iterable[tfgnn.GraphTensor]) -> int:
  """Writes scalar GraphTensors to a TFRecord file; returns how many.

  The file appears at `path` only when it is complete.
  """
  count, partial = 0, path + ".partial"
  with tf.io.TFRecordWriter(partial) as writer:
    for graph in graphs:
      writer.write(tfgnn.write_example(graph).SerializeToString())
      count += 1
  os.replace(partial, path)
  return count


def read_records(path: str) -> Iterator[tfgnn.GraphTensor]:
  """Yields the scalar GraphTensors of a TFRecord file."""
  spec = schema.graph_tensor_spec()
  for record in tf.data.TFRecordDataset(path):
    yield tfgnn.parse_single_example(spec, record)
