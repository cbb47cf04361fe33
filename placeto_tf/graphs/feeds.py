"""Feeds of a measured step: random tensors of the right shapes, or the user's own.

Floats are uniform in [0, 1), booleans are true half of the time. Strings are
valid for the op that parses them (`made_strings`). Whole numbers
must be valid where they are used as indices (token ids, class labels). Ops that use a feed as
indices, directly or through ops that only move values, determine the range of its numbers. Without
such ops a feed has its assumed number (`feed_values`), or the numbers 0 and 1.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import ArrayLike

from placeto_tf.errors import MeasurementError
from placeto_tf.files import user_files
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.loops import PASSING
from placeto_tf.graphs.made_strings import made_strings, readers, table_keys
from placeto_tf.on_use import tf

Feeds = Union[str, Mapping[str, ArrayLike], Callable[[], Mapping[str, ArrayLike]]]

_MOST_BYTES = 8 * user_files.GB  # of a file of feeds
_UNBOUNDED = 2  # 0 or 1: valid ids of anything worth indexing
_PADDING = 0.25
# Ops that use values as indices: op type -> (input with the indices, input and axis indexed; or
# None, and the input that holds the number of indices).
_INDEXES = {
    "GatherV2": (1, 0, 0), "Gather": (1, 0, 0), "ResourceGather": (1, 0, 0),
    "SparseSoftmaxCrossEntropyWithLogits": (1, 0, 1),
    "UnsortedSegmentSum": (1, None, 2), "OneHot": (0, None, 1),
}


def make_feeds(
    graph: ComputationGraph, tf_graph: tf.Graph, feeds: Feeds = "random", seed: int = 0
) -> Dict[str, np.ndarray]:
  """Makes a value for every feed of the graph.

  Args:
    graph: with its feeds and their shapes.
    tf_graph: the `tf.Graph` that will be run.
    feeds: "random", the path of an .npz file, a mapping, or a callable that returns a mapping; keys
      are tensor names, with or without ":0".
    seed: of random values.

  Raises:
    MeasurementError: a feed is missing, unknown, of the wrong shape, or of a type without random
      values; or the file cannot be read.
  """
  if feeds == "random":
    return random_feeds(
        tf_graph, shapes_of(graph), seed, graph.source.feed_values if graph.source else {})
  if isinstance(feeds, (str, os.PathLike)):
    feeds = user_files.read_arrays(
        feeds, what="the feeds file", remedy="expected an .npz", error_type=MeasurementError,
        most_bytes=_MOST_BYTES)
  return _checked(graph, feeds() if callable(feeds) else feeds)


def random_feeds(
    tf_graph: tf.Graph, shapes: Mapping[str, Sequence[int]], seed: int,
    values: Mapping[str, int] = {}) -> Dict[str, np.ndarray]:
  """Makes random values of tensors.

  Args:
    tf_graph: the graph that will be run.
    shapes: tensor name -> dimensions.
    seed: of the values.
    values: tensor name -> number of each element, for tensors that are no indices.

  Returns:
    Tensor name -> value, in the order of the names.

  Raises:
    MeasurementError: a tensor is of a type without random values.
  """
  # Sort by name, so that values depend on the seed and not on the order of the feeds.
  rng = np.random.default_rng(seed)
  return {name: _random(tf_graph, name, tuple(shape), rng, values.get(name))
          for name, shape in sorted(shapes.items())}


def with_masks(
    feed: Mapping[str, np.ndarray], rng: np.random.Generator, *, signed: bool = False
) -> Dict[str, np.ndarray]:
  """Changes random feeds so that masks which a step computes hide some entries.

  A step may mask entries that are zero (padding) or not positive. Random ids are hardly ever zero,
  and random floats are always positive, so without this change no mask would hide anything.

  Args:
    feed: tensor name -> value, from `make_feeds`.
    rng: source of random numbers.
    signed: whether half of the numbers are negative.

  Returns:
    Tensor name -> value, of the same shapes and types.
  """
  found = {}
  for name, value in feed.items():
    # Ids: a quarter of the entries become zero, which stands for padding.
    if value.ndim and value.dtype.kind in "iu":
      value = np.where(rng.random(value.shape) < _PADDING, 0, value).astype(value.dtype)
    elif value.ndim and signed and value.dtype.kind == "f":
      # From [0, 1) to [-1, 1).
      value = (2 * value - 1).astype(value.dtype)
    found[name] = value
  return found


def shapes_of(graph: ComputationGraph) -> Mapping[str, Tuple[int, ...]]:
  """Returns tensor name -> shape of every feed."""
  return graph.source.feed_shapes if graph.source is not None else {}


def _checked(graph: ComputationGraph, given: Mapping[str, Any]) -> Dict[str, np.ndarray]:
  """Returns tensor name -> value of the user's feeds, checked; raises as `make_feeds` does."""
  shapes = shapes_of(graph)
  given = {name if ":" in name else f"{name}:0": np.asarray(value) for name, value in given.items()}
  unknown, missing = sorted(set(given) - set(shapes)), sorted(set(shapes) - set(given))
  if unknown or missing:
    raise MeasurementError(
        f"the feeds name {', '.join(unknown) or 'nothing else'} and lack "
        f"{', '.join(missing) or 'nothing'}; expected exactly "
        f"{', '.join(sorted(shapes)) or 'none'}")
  for name, value in given.items():
    if tuple(value.shape) != tuple(shapes[name]):
      raise MeasurementError(
          f"feed {name!r} has shape {value.shape}; expected {tuple(shapes[name])}")
  return dict(given)


def _random(
    tf_graph: tf.Graph, name: str, shape: Tuple[int, ...], rng: np.random.Generator,
    value: Optional[int] = None) -> np.ndarray:
  tensor = tf_graph.get_tensor_by_name(name)
  dtype = tensor.dtype.base_dtype
  if dtype.is_floating or dtype.is_complex:
    return rng.random(shape).astype(dtype.as_numpy_dtype)
  if dtype.is_bool:
    return rng.random(shape) < 0.5
  if dtype.is_integer:
    keys, size = table_keys(tensor), _index_size(tensor)
    if keys is not None and 0 in keys:  # zero stands for padding
      return rng.choice(keys, shape).astype(dtype.as_numpy_dtype)
    if size is None and value is not None:
      return np.full(shape, value, dtype.as_numpy_dtype)
    return rng.integers(0, size or _UNBOUNDED, shape).astype(dtype.as_numpy_dtype)
  if dtype.name == "string":
    found = np.empty(shape, object)
    found.reshape(-1)[:] = made_strings(tensor, found.size, rng, index_range)
    return found
  raise MeasurementError(
      f"feed {name!r} is of type {dtype.name}, which has no random values; give feeds")


def index_range(tensor: tf.Tensor) -> int:
  """Returns the number of valid values of a tensor of indices, from the ops that read it."""
  return _index_size(tensor) or _UNBOUNDED


def _index_size(tensor: tf.Tensor) -> Optional[int]:
  # Take the smallest range, which is valid for every reader.
  return min(filter(None, (
      _indexed_size(op, *_INDEXES[op.type][1:]) for at, op in readers(tensor)
      if op.type in _INDEXES and op.inputs[_INDEXES[op.type][0]] is at)), default=None)


def _indexed_size(op: tf.Operation, position: Optional[int], axis: int) -> int:
  """Returns the size of the indexed dimension; 0 where it is not known."""
  if position is None:
    return _constant(op.inputs[axis])
  source = op.inputs[position]
  if source.dtype == tf.resource:  # take the shape of the variable from its handle
    while source.op.type in PASSING:
      source = source.op.inputs[0]
    if source.op.type != "VarHandleOp":
      return 0
    shape = tf.TensorShape(source.op.get_attr("shape"))
  else:
    # The axis of a GatherV2 is an input.
    if op.type == "GatherV2":
      axis = _constant(op.inputs[2])
    shape = source.shape
  return int(shape[axis] or 0) if shape.rank is not None and shape.rank > axis else 0


def _constant(tensor: tf.Tensor) -> int:
  value = tf.get_static_value(tensor)
  return 0 if value is None else int(value)
