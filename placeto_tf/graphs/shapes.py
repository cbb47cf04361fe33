"""Shapes of feeds: read from the graph; the user gives the sizes of unknown dimensions."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

from placeto_tf.errors import GraphError, option
from placeto_tf.graphs.tensor_names import op_of
from placeto_tf.on_use import GraphDef, NodeDef, TensorShapeProto

Shape = Optional[Tuple[int, ...]]  # None for unknown rank, -1 for an unknown dimension
PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
WITH_DEFAULT = "PlaceholderWithDefault"
ITERATORS = ("IteratorGetNext", "IteratorGetNextSync")
ASSUMED = "assumed: "  # the beginning of a note
FEEDABLE = (*PLACEHOLDERS, WITH_DEFAULT)
_LAST_WITHOUT_RANKS = 21  # GraphDef version of TensorFlow 1.0


class UnknownShapes(GraphError):
  """The feeds of a graph, or the batches of an iterator, have unknown dimensions.

  Attributes:
    graph: the `ComputationGraph`; its source has the dimensions as far as they are known.
  """

  def __init__(self, message: str, graph: Any):
    super().__init__(message)
    self.graph = graph


def unknown_shapes(unknown: Mapping[str, Shape]) -> str:
  """Returns a message with the options to give for feeds (names -> shapes) of unknown shapes."""
  found = ", ".join(f"{name!r} {format_shape(shape)}" for name, shape in unknown.items())
  # Plausible sizes: a batch of 32, and a scalar where the rank is unknown.
  example = {op_of(name): tuple(32 if dim < 0 else dim for dim in shape or ())
             for name, shape in unknown.items()}
  remedy = f"{option('feed_shapes', example)} or the like"
  # A batch size is enough where only first dimensions are unknown.
  batched = [(shape or ())[:1] == (-1,) for shape in unknown.values()]
  if all(batched) and not any(-1 in (shape or ())[1:] for shape in unknown.values()):
    remedy = f"{option('batch_size', 32)} or {remedy}"
  elif any(batched):
    remedy += f", or {option('batch_size')} where only the first dimension is unknown"
  what = "input has" if len(unknown) == 1 else "inputs have"
  return (f"{len(unknown)} {what} unknown dimensions: {found}, without which no step time means "
          f"anything; give {remedy}")


def with_unknown_ranks(graph_def: GraphDef) -> GraphDef:
  """Returns a graph of TensorFlow 1.0 or earlier with placeholders as later versions write them.

  These versions write an empty shape, that of a scalar, for an unknown rank as well. TensorFlow
  takes it for an unknown rank in their graphs.

  Returns:
    A changed copy, or the same GraphDef if there is no such placeholder.
  """
  old = [i for i, node in enumerate(graph_def.node) if node.op == "Placeholder" and (
      "shape" in node.attr and not node.attr["shape"].shape.dim)]
  if not old or not 0 < graph_def.versions.producer <= _LAST_WITHOUT_RANKS:
    return graph_def
  found = type(graph_def)()
  found.CopyFrom(graph_def)
  for i in old:
    found.node[i].attr["shape"].shape.unknown_rank = True
  return found


def declared_shape(node: NodeDef, port: int = 0) -> Shape:
  """Returns the shape that a node declares for an output.

  Args:
    node: the NodeDef; its value, `shape` and `_output_shapes` are read in this order.
    port: the output.

  Returns:
    The dimensions, -1 for an unknown one; None for an unknown rank.
  """
  attrs = node.attr
  if node.op == "Const" and "value" in attrs:
    return dimensions(attrs["value"].tensor.tensor_shape)
  if node.op == WITH_DEFAULT and "shape" in attrs:
    return dimensions(attrs["shape"].shape)
  if node.op in PLACEHOLDERS and "shape" in attrs:
    shape = attrs["shape"].shape
    if shape.dim or node.op == "PlaceholderV2":
      return dimensions(shape)
    if not shape.unknown_rank and "_output_shapes" not in attrs:
      return ()
  if "_output_shapes" in attrs:
    shapes = attrs["_output_shapes"].list.shape
    if port < len(shapes):
      return dimensions(shapes[port])
  return None


def bind(name: str, declared: Shape, given: Shape, batch_size: Optional[int]) -> Shape:
  """Returns the shape of a feed, as far as its dimensions are known.

  Args:
    name: name of the feed, for messages.
    declared: the shape in the graph.
    given: the shape from the user, or None.
    batch_size: for an unknown first dimension, or None.

  Returns:
    The dimensions, -1 for an unknown one; None for an unknown rank.

  Raises:
    GraphError: the given shape contradicts the graph.
  """
  shape = declared
  # Known dimensions of the graph must agree with the given shape, unknown ones take it.
  if given is not None:
    if shape is not None and (len(shape) != len(given) or any(
        known not in (-1, dim) for known, dim in zip(shape, given))):
      raise GraphError(
          f"placeholder {name!r} has the shape {format_shape(shape)}, but {format_shape(given)} "
          "is given for it; correct feed_shapes")
    shape = given
  if shape and shape[0] == -1 and batch_size is not None:
    shape = (batch_size,) + shape[1:]
  return shape if shape is None else tuple(shape)


def shapes_of_iterator(node: NodeDef, batch_size: Optional[int]) -> Optional[Tuple[Shape, ...]]:
  """Returns the output shapes of an iterator whose unknown first dimensions are the batch size.

  Args:
    node: the op that takes the next batch of the iterator.
    batch_size: the batch size, or None.

  Returns:
    The shapes; None if the node states all first dimensions.
  """
  stated = [dimensions(shape) for shape in node.attr["output_shapes"].list.shape]
  if not any(shape and shape[0] == -1 for shape in stated):
    return None
  return tuple((batch_size or -1, *shape[1:]) if shape and shape[0] == -1 else shape
               for shape in stated)


def check_batch_size(batch_size: Any) -> None:
  """Raises GraphError if a batch size is given and is no whole number from 1."""
  if batch_size is not None and (not _is_size(batch_size) or batch_size < 1):
    raise GraphError(f"batch_size is {batch_size!r:.60}; expected a whole number of at least 1, "
                     f"such as {option('batch_size', 32)}")


def check_given(
    batch_size: Any, feed_shapes: Optional[Mapping[str, Sequence[int]]]
) -> Mapping[str, Tuple[int, ...]]:
  """Checks the sizes that a user gives.

  Args:
    batch_size: a positive whole number, or None.
    feed_shapes: op or tensor name -> dimensions, or None.

  Raises:
    GraphError: a size is no whole number, or too small.
  """
  check_batch_size(batch_size)
  shapes = {}
  for name, shape in (feed_shapes or {}).items():
    # A text is iterable, too, and would be read as a list of letters.
    dims = tuple(shape) if not isinstance(shape, str) else (shape,)
    if not all(_is_size(dim) and dim >= 0 for dim in dims):
      raise GraphError(
          f"the shape {shape!r} given for {name!r} is not a list of whole numbers; expected "
          "something like (32, 128)")
    shapes[op_of(name)] = tuple(int(dim) for dim in dims)
  return shapes


def divided(batch: int, replicas: int, of: str = "") -> int:
  """Returns the examples of one replica.

  Args:
    batch: examples of all replicas.
    replicas: R.
    of: the end of "the batch of 8 examples", such as " of 'x'", for the message.

  Raises:
    GraphError: the batch does not divide.
  """
  if batch % replicas:
    raise GraphError(
        f"the batch of {batch} examples{of} cannot be divided among {replicas} replicas; "
        f"choose a batch that is a multiple of {replicas}, or another number of replicas")
  return batch // replicas


def write_shape(proto: TensorShapeProto, shape: Shape) -> None:
  """Writes a shape into a TensorShapeProto.

  Args:
    proto: changed in place.
    shape: the dimensions, None for unknown rank.
  """
  proto.Clear()
  proto.SetInParent()
  proto.unknown_rank = shape is None
  for dim in shape or ():
    proto.dim.add().size = dim


def format_shape(shape: Shape) -> str:
  """Returns a shape as a text, such as [?, 224, 224, 3]."""
  if shape is None:
    return "of unknown rank"
  return "[" + ", ".join("?" if dim < 0 else str(dim) for dim in shape) + "]"


def dimensions(shape: TensorShapeProto) -> Shape:
  """Returns the dimensions, -1 for an unknown one; None for an unknown rank."""
  return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)


def _is_size(value: Any) -> bool:
  return hasattr(value, "__index__") and not isinstance(value, bool) and value < 1 << 40
