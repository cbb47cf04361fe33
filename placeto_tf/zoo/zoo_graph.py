"""`ZooGraph`: a finished training graph and the names that are needed to run it."""

from __future__ import annotations

import dataclasses
from typing import Tuple

from placeto_tf.on_use import MetaGraphDef, tf

TRAIN_OP = "train_op"  # tf.compat.v1.GraphKeys.TRAIN_OP; grappler finds its fetches there


@dataclasses.dataclass(frozen=True, eq=False)
class ZooGraph:
  """A training graph in v1 graph mode. Shapes are static, random ops carry their op seeds.

  Attributes:
    name: the full spec, every option written out: "rnnlm:batch=64:hidden=2048:...".
    graph: the `tf.Graph`.
    train_op: name of the op that runs one training step.
    loss: name of the scalar loss tensor ("loss:0"); fetching it alone runs no update.
    init_op: name of the op that initialises all variables.
    feeds: names of the placeholder tensors, all of them fully shaped.
  """

  name: str
  graph: tf.Graph
  train_op: str
  loss: str
  init_op: str
  feeds: Tuple[str, ...]

  @property
  def num_parameters(self) -> int:
    """Returns the number of elements of all trained variables."""
    variables = self.graph.get_collection("trainable_variables")
    return sum(variable.shape.num_elements() for variable in variables)

  def meta_graph_def(self) -> MetaGraphDef:
    """Returns the MetaGraphDef: the whole graph, its variables and the collection `train_op`."""
    with self.graph.as_default():  # the exporter refuses to work while execution is eager
      return tf.compat.v1.train.export_meta_graph()
