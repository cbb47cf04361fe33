"""Gives variables, lookup tables and iterators their first values, for graphs of any format.

A variable is initialized by the first available of three ops: its own initializer (named in the
variable collections of a MetaGraphDef), the graph's op `init`, or an assignment of small random
values, which is added to the graph on the variable's device.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.traversal import reachable
from placeto_tf.graphs.variable_defs import variable_defs
from placeto_tf.on_use import tf
from placeto_tf.ops import FILLS, VARIABLES

INIT_OPS = ("init", "initialize", "global_variables_initializer")
_SCALE = 0.05  # positive and small: also good for variances and learning rates


def initializers(
    graph: ComputationGraph, tf_graph: tf.Graph
) -> Tuple[List[tf.Operation], Dict[tf.Tensor, Any]]:
  """Returns the ops that initialize the graph's variables, tables and iterators, and their feeds.

  Args:
    graph: the graph that will be run.
    tf_graph: the placed `tf.Graph`; ops may be added to it.

  Returns:
    The ops, and placeholder -> value.
  """
  ops, fed = initializers_of(tf_graph, of_graph(graph), own_initializers(graph))
  more, assets = fills(graph, tf_graph)
  return [*ops, *more], {**fed, **assets}


def fills(
    graph: ComputationGraph, tf_graph: tf.Graph) -> Tuple[List[tf.Operation], Dict[tf.Tensor, str]]:
  """Returns the ops that fill the step's lookup tables and start its iterators, and their feeds.

  Args:
    graph: the graph that will be run.
    tf_graph: the whole graph.

  Returns:
    The ops outside of the step, and placeholder -> path for a SavedModel's assets. Ops of a Saver
    are left out, because they need a checkpoint.
  """
  folder = os.path.join(graph.origin.path or "", "assets")
  paths = {asset.tensor_info.name: os.path.join(folder, asset.filename)
           for asset in getattr(graph.origin.meta_graph, "asset_file_def", ())}
  found, fed = [], {}
  for op in tf_graph.get_operations():
    if not op.type.startswith(FILLS) or op.name in graph.op_index:
      continue
    needed = needed_by([op])
    placeholders = [each.outputs[0] for each in needed if each.type == "Placeholder"]
    of_step = any(each.name in graph.op_index for each in needed)  # such as the table's handle
    restores = any(each.type.startswith("Restore") for each in needed)
    if of_step and not restores and all(tensor.name in paths for tensor in placeholders):
      found.append(op)
      fed.update({tensor: paths[tensor.name] for tensor in placeholders})
  return found, fed


def of_graph(graph: ComputationGraph) -> List[str]:
  """Returns the names of the ops that hold the variables of a graph."""
  return [name for name, kind in zip(graph.op_names, graph.op_types) if kind in VARIABLES]


def initializers_of(
    tf_graph: tf.Graph, wanted: Sequence[str], own: Mapping[str, str], plain: bool = False
) -> Tuple[List[tf.Operation], Dict[tf.Tensor, np.ndarray]]:
  """Returns the ops that initialize variables, and their feeds.

  Args:
    tf_graph: ops may be added to it.
    wanted: names of the variables' ops.
    own: variable's op -> the op that initializes it, where known.
    plain: whether all other variables get small random values, without the graph's op `init`.

  Returns:
    The ops, and placeholder -> value for the added ops.
  """
  ops, left = [], []
  for name in wanted:
    initializer = _find(tf_graph, own.get(name))
    if initializer is not None:
      ops.append(initializer)
    else:
      left.append(name)
  # An initializer may also write the variables of other replicas.
  left = _not_reached(left, ops)
  # Second choice: an op of the graph that initializes all variables, such as `init`.
  if left and not plain:
    init = next(filter(None, (_find(tf_graph, name) for name in INIT_OPS)), None)
    if init is not None and init.type == "NoOp":
      left = _not_reached(left, [init])
      ops.append(init)
  fed: Dict[tf.Tensor, np.ndarray] = {}
  for name in left:
    ops.append(_assign_random(tf_graph, name, fed))
  return ops, fed


def own_initializers(graph: ComputationGraph) -> Dict[str, str]:
  """Returns variable op -> initializer op, from the collections of the graph's file."""
  source = graph.source
  meta_graph = None if source is None else source.meta_graph or source.proto
  if not hasattr(meta_graph, "collection_def"):
    return {}
  return {name: variable.initializer_name for name, variable in variable_defs(meta_graph).items()
          if variable.initializer_name}


def _find(tf_graph: tf.Graph, name: Optional[str]) -> Optional[tf.Operation]:
  try:
    return tf_graph.get_operation_by_name(name or "")  # no op has an empty name
  except KeyError:
    return None


def _not_reached(names: List[str], ops: List[tf.Operation]) -> List[str]:
  """Returns the names of ops that none of `ops` depends on."""
  seen = {op.name for op in needed_by(ops)}
  return [name for name in names if name not in seen]


def needed_by(ops: Sequence[tf.Operation]) -> Set[tf.Operation]:
  """Returns the ops and all ops that they depend on."""
  return reachable(ops, lambda op: [*op.control_inputs, *(tensor.op for tensor in op.inputs)])


def _assign_random(tf_graph: tf.Graph, name: str, fed: Dict[tf.Tensor, np.ndarray]) -> tf.Operation:
  """Adds an op that assigns fed values to a variable."""
  v1 = tf.compat.v1
  op = tf_graph.get_operation_by_name(name)
  shape = tf.TensorShape(op.get_attr("shape"))
  # Unknown dimensions are 1, an unknown rank is a scalar.
  shape = [size or 1 for size in shape.as_list()] if shape.rank is not None else []
  dtype = tf.as_dtype(op.get_attr("dtype"))
  rng = np.random.default_rng(0)
  values = (rng.random(shape) * _SCALE) if dtype.is_floating else np.zeros(shape)
  with tf_graph.as_default(), tf_graph.device(op.device):
    value = v1.placeholder(dtype, shape)
    fed[value] = values.astype(dtype.as_numpy_dtype)
    if op.type == "VarHandleOp":
      return tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=value)
    # A variable of unknown shape accepts any shape.
    return tf.raw_ops.Assign(ref=op.outputs[0], value=value, validate_shape=False).op
