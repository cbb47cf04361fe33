"""Stores fed values on the device of their placeholder, like examples of an input pipeline.

TensorFlow receives all fed values on the first worker, which sends them on when a thread is free.
With a single thread, this can be after all other ops of the first worker, so a second worker that
could begin at once begins when the first one has ended (docs/results/replicas.md). This delay is no
part of the graph's step, and it is not simulated. So a placeholder on a CPU becomes the read of a
variable, and the value is written to the variable once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterable, List, Mapping, Tuple

import numpy as np

from placeto_tf.graphs import shapes
from placeto_tf.graphs.colocation import RESOURCE

if TYPE_CHECKING:
  import tensorflow as tf
  from tensorflow.core.framework.graph_pb2 import GraphDef

_VARIANT = 21  # DT_VARIANT


def hold(graph_def: GraphDef, fed: Iterable[str]) -> Dict[str, str]:
  """Makes placeholders on CPUs read variables, in place.

  Args:
    graph_def: placed, with full device names.
    fed: names of tensors that are fed.

  Returns:
    Name of a fed tensor -> name of the variable's op. All others are to be fed.
  """
  names = {name[:-2] for name in fed if name.endswith(":0")}
  taken = {node.name for node in graph_def.node}
  found: Dict[str, str] = {}
  for node in [node for node in graph_def.node if node.name in names]:
    dtype = node.attr["dtype"].type
    # GPUs and types that a variable cannot hold are fed as usual.
    if node.op not in shapes.FEEDABLE or "CPU:" not in node.device or dtype in (RESOURCE, _VARIANT):
      continue
    held = f"{node.name}/held"
    # A name that no node of the graph has.
    while held in taken:
      held += "_"
    handle = graph_def.node.add(name=held, op="VarHandleOp", device=node.device)
    handle.attr["dtype"].type = dtype
    handle.attr["shared_name"].s = held.encode()
    if "shape" in node.attr:
      handle.attr["shape"].shape.CopyFrom(node.attr["shape"].shape)
    else:
      handle.attr["shape"].shape.unknown_rank = True
    # Colocation constraints survive the change of the op.
    together = node.attr["_class"].list.s[:] if "_class" in node.attr else []
    # The placeholder keeps its name, so that its readers do not change.
    node.op = "ReadVariableOp"
    node.attr.clear()
    node.attr["dtype"].type = dtype
    if together:
      node.attr["_class"].list.s.extend(together)
    node.input[:] = [held]
    found[f"{node.name}:0"] = held
  return found


def put(
    tf_graph: tf.Graph, held: Mapping[str, str], values: Mapping[str, np.ndarray]
) -> Tuple[List[tf.Operation], Dict[tf.Tensor, np.ndarray]]:
  """Makes the ops that put values into the variables, and their feeds.

  Args:
    tf_graph: made of the graph that `hold` changed; ops are added to it.
    held: from `hold`.
    values: name of a fed tensor -> its value.

  Returns:
    The ops to run once, and placeholder -> value for that run.
  """
  import tensorflow as tf

  ops, feeds = [], {}
  with tf_graph.as_default():
    for name, variable in held.items():
      handle = tf_graph.get_operation_by_name(variable)
      dtype = tf.dtypes.as_dtype(handle.get_attr("dtype"))
      # Beside the variable: the value crosses to its device once, not in each step.
      with tf.device(handle.device):
        value = tf.compat.v1.placeholder(dtype, values[name].shape)
        ops.append(tf.raw_ops.AssignVariableOp(resource=handle.outputs[0], value=value))
      feeds[value] = values[name]
  return ops, feeds
