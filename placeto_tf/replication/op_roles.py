"""Roles of ops besides computing: random ops, input pipelines, variables, updates of state.

Dimensions: N needed ops.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from placeto_tf.errors import GraphError
from placeto_tf.graphs.captures import captures_of
from placeto_tf.graphs.computation_graph import GraphSource
from placeto_tf.graphs.op_defs import registered_op_def
from placeto_tf.graphs.shapes import FEEDABLE
from placeto_tf.ops import op_rule, types_with
from placeto_tf.replication.dataflow import Dataflow, Tensor
from placeto_tf.replication.scaling import Scaling

# Random ops, by the source of their randomness.
STATEFUL_RANDOM = types_with(role=op_rule.RANDOM)
SEEDED_RANDOM = types_with(role=op_rule.SEEDED_RANDOM)
KEYED_RANDOM = types_with(role=op_rule.KEYED_RANDOM)
VARIABLE_RANDOM = types_with(role=op_rule.VARIABLE_RANDOM)
KEYS = types_with(key=True)
RANDOM_OPS = STATEFUL_RANDOM | SEEDED_RANDOM | KEYED_RANDOM | VARIABLE_RANDOM
PIPELINES = types_with(role=op_rule.PIPELINE)
STEP_CONTAINERS = types_with(role=op_rule.CONTAINER)
VARIABLES = types_with(role=op_rule.VARIABLE)
OF_VARIABLES = VARIABLES | types_with(role=op_rule.OF_VARIABLE)
_UPDATES = types_with(role=op_rule.UPDATE)
_MAY_BE_COPIED = RANDOM_OPS | PIPELINES | STEP_CONTAINERS | OF_VARIABLES | types_with(
    role=op_rule.HARMLESS)


def is_update(op_type: str) -> bool:
  """Returns whether the op changes a variable."""
  return op_type in _UPDATES or op_type.startswith((
      "ResourceApply", "ResourceSparseApply", "SparseApply", "Apply", "Scatter", "ResourceScatter"
  )) and op_type not in ("ScatterNd", "ScatterNdNonAliasingAdd")


def sparse_arguments(flow: Dataflow, op: int) -> Optional[Tuple[Tensor, Tensor]]:
  """Returns (values, indices) of an update of rows of a variable, or None for another op."""
  if not is_update(flow.types[op]):
    return None
  # The names of an op's inputs show which input holds rows of a gradient.
  names = [arg.name for arg in registered_op_def(flow.types[op]).input_arg]
  values = next((name for name in ("grad", "updates") if name in names), None)
  if "indices" not in names or values is None:
    return None
  return flow.inputs[op][names.index(values)], flow.inputs[op][names.index("indices")]


def batch_feeds(flow: Dataflow, scaling: Scaling) -> Tuple[int, List[int]]:
  """Returns the batch size, and the ops that are fed with a batch or read an input pipeline.

  A feed that does not grow with the batch (a learning rate, a flag) is the same for all replicas.

  Args:
    flow: the dataflow of the graph.
    scaling: the parts of the graph that grow with the batch.

  Raises:
    GraphError: there is no batch, feeds have batches of different sizes, or a feed has its batch in
      another dimension than the first.
  """
  graph = flow.graph
  # Captures are no feeds: they are the same for every batch.
  captures = captured_ops(graph.origin)
  found: Dict[int, Tuple[str, Any]] = {}  # those with a batch: name and shape
  for name, shape in graph.origin.feed_shapes.items():
    op_name = name.rpartition(":")[0]
    if op_name in captures:
      continue
    op = graph.op_index[op_name]
    # If the graph at a larger batch is unknown, every feed of rank 1 or more counts as a batch.
    axes = scaling.axes((op, 0))
    if axes is None:
      axes = [0] if shape else []
    if axes not in ([], [0]):
      raise GraphError(
          f"feed {name!r} of shape {list(shape)} has the batch elsewhere than in its first "
          "dimension, so that replicas cannot divide it; put the batch into its first dimension")
    if axes:
      found[op] = (name, shape)
  pipelines = [op for op, op_type in enumerate(flow.types) if op_type in PIPELINES]
  for op in pipelines:
    given = flow.shape((op, 0))
    if given and given[0]:
      found[op] = (graph.op_names[op], given)
  if not found:
    raise GraphError(
        "nothing that the fetches need is fed with a batch or read from an input pipeline, so that "
        "there is nothing to divide; name the tensor that holds the examples in feeds, with its "
        "shape in feed_shapes, or place one replica")
  # The most frequent size is the batch; another is an error.
  sizes = {name: shape[0] for name, shape in found.values()}
  batch = max(sizes.values(), key=list(sizes.values()).count)
  for name, size in sizes.items():
    if size != batch:
      like = next(each for each in sizes if sizes[each] == batch)
      raise GraphError(
          f"{name!r} has {size} rows for a replica, but {like!r} has {batch}, so that they are not "
          "rows of the same examples; turn feeds that are no batch into constants or variables of "
          "the graph, leave only the first dimension of batches open, with None, or feed sparse "
          "and ragged tensors as dense ones")
  return batch, sorted({*found, *pipelines})


def captured_ops(source: GraphSource) -> FrozenSet[str]:
  """Returns the captures of a function: inputs that are the same for every batch."""
  return frozenset(
      captures_of(source.tf_graph) if source.format == "concrete_function" else ())


def is_stateless(op_type: str) -> bool:
  """Returns whether TensorFlow declares that an op's outputs depend on its inputs alone."""
  op_def = registered_op_def(op_type)
  return op_def is not None and not op_def.is_stateful and op_type not in FEEDABLE


def may_be_copied(op_type: str) -> bool:
  """Returns whether each replica may have an op of this type that reads its examples."""
  op_def = registered_op_def(op_type)
  return op_def is None or not op_def.is_stateful or op_type in _MAY_BE_COPIED or (
      is_update(op_type) or op_type.startswith(("TensorArray", "Stateless", "TensorList")))
