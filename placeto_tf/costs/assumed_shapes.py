"""Loads a graph whose feeds have unknown shapes, with shapes that fit the graph.

Shapes are found by trying: a feed of unknown rank is a scalar, unknown first dimensions are one
batch, other unknown dimensions are one length, and TensorFlow's shape functions, which compute all
shapes of the step from those of its feeds, say whether they fit. The op where they do not fit, and
the sizes that its message states, decide what is changed. Sizes that the graph determines, such as
those of a product with a matrix of known shape, are taken from grappler.
"""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.costs import guarded, shape_analysis
from placeto_tf.costs.grappler import Question
from placeto_tf.costs.loop_rounds import LoopRounds
from placeto_tf.errors import CostError, GraphError, listed, one_line, option
from placeto_tf.graphs import analysis_graph_def, feed_values, load_graph, shapes
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.tensor_names import Tensor, op_of, parse
from placeto_tf.graphs.traversal import reachable, topological_order
from placeto_tf.on_use import GraphDef, tf

VALUE = -2  # in place of a port: the number that a fed scalar holds
_BATCH, _LENGTH, _IMAGE = 32, 32, 224
_COLOURS = 4  # the most that the last dimension of an image has
_RANKS = (2, 1, 3, 4)  # after a scalar
_MOST_CONSTANTS = 20
_SECONDS = 20.0  # of CPU time, after which no more shapes are tried
_SECONDS_PER_OP = 0.01  # besides, ten times the usual time of one trial
_MOST_SIZE = 1 << 20

_Dims = Tuple[int, ...]
# The op whose shapes do not fit, its inputs, and their shapes.
_FAILED = re.compile(
    r"\{\{node (.*?)\}\} = \w+(?:\[.*\])?\((.*?)\)' with input shapes: (.*?)(?: and with |\.?$)")


def load(source: Any, **options: Any) -> ComputationGraph:
  """Loads a graph as `load_graph` does, and assumes shapes of feeds that are unknown.

  Args:
    source, **options: see `load_graph`.

  Returns:
    The graph; a note states what was assumed.

  Raises:
    GraphError: see `load_graph`; or no shapes of the feeds fit the graph.
  """
  try:
    graph = load_graph(source, **options)
  except shapes.UnknownShapes as error:
    graph = error.graph
  own, nodes = graph.origin, graph.nodes
  unknown = {parse(name): shape for name, shape in own.feed_shapes.items()
             if shape is None or -1 in shape}
  unknown.update(((op, port), shape) for op, outputs in own.iterator_shapes.items()
                 for port, shape in enumerate(outputs) if shape and shape[0] < 0)
  numbers = [name for name in feed_values.of_sizes(nodes)
             if not own.feed_shapes.get(name, (1,)) and name not in own.feed_values]
  if not unknown and not numbers:
    return graph
  try:
    found = guarded.call(
        fitting, 2 * _SECONDS + _SECONDS_PER_OP * len(nodes), analysis_graph_def(graph),
        {**unknown, **{(op_of(name), VALUE): (-1,) for name in numbers}},
        options.get("batch_size"))
  except CostError as error:
    if not unknown:  # no more than numbers were tried
      return graph
    raise GraphError(f"{error}; give shapes that fit ({option('feed_shapes')}), or fetch "
                     f"another part of the graph ({option('fetches')})") from None
  feeds = {name: found.get(parse(name), shape) for name, shape in own.feed_shapes.items()}
  values, notes = feed_values.of_loops(nodes, feeds)
  values.update((name, found[op_of(name), VALUE][0]) for name in numbers
                if not feeds[name] and name not in values)
  batches = {found[tensor][0] for tensor, shape in unknown.items() if shape and shape[0] < 0}
  said = [f"batch {size}" for size in batches] if len(batches) == 1 else []
  said += [f"{tensor[0]} {shapes.format_shape(found[tensor]) if found[tensor] else 'a scalar'}"
           for tensor, shape in unknown.items() if shape is None or -1 in shape[bool(said):]]
  held = listed([f"{op_of(name)} {values[name]}" for name in numbers if name in values], most=8)
  return dataclasses.replace(
      graph, notes=tuple(dict.fromkeys((
          *graph.notes, *(notes if own.trip_count is None else ()),
          *([f"{shapes.ASSUMED}{held}; numbers that the graph leaves open are the batch "
             f"({option('batch_size')})"] * bool(held)),
          *([f"{shapes.ASSUMED}{listed(said, most=8)}; {option('feed_shapes')} changes them"]
            * bool(said)))
      )),
      source=dataclasses.replace(
          own, feed_shapes=feeds, feed_values=values, iterator_shapes={
              op: tuple(found.get((op, port), shape) for port, shape in enumerate(outputs))
              for op, outputs in own.iterator_shapes.items()}))


def fitting(
    graph_def: GraphDef, unknown: Mapping[Tensor, shapes.Shape], batch: Optional[int]
) -> Dict[Tensor, _Dims]:
  """Finds shapes that fit the graph; to be called in a process of its own.

  Args:
    graph_def: the step, with the known dimensions of its feeds.
    unknown: fed tensors -> their dimensions, as far as they are known.
    batch: the batch size that the user gives, or None.

  Returns:
    Fed tensor -> all of its dimensions.

  Raises:
    CostError: TensorFlow refuses all shapes that were tried.
  """
  trial = _Trial(graph_def, unknown, batch)
  found = trial.start()
  place, reason = trial.refused(found)
  before = ""
  while reason:
    for changed in trial.changes(found, reason):
      # Better shapes are those with which TensorFlow reads more ops.
      later, other = trial.refused(changed)
      if later > place or time.process_time() > trial.end_s:
        break
    else:
      later = place
    if later <= place:
      raise CostError(trial.message(reason, before))
    found, place, before, reason = changed, later, reason, other
  return found


class _Trial:
  """Tries shapes of feeds on one graph."""

  def __init__(
      self, graph_def: GraphDef, unknown: Mapping[Tensor, shapes.Shape], batch: Optional[int]):
    loops = LoopRounds(graph_def.node)
    self._straight = shape_analysis.straight(graph_def, loops)
    self._order = _sort(self._straight)
    self._readable = shape_analysis.readable(self._straight, loops)
    self._nodes = {node.name: node for node in self._straight.node}
    self._unknown, self._batch = unknown, batch or _BATCH
    self.end_s = time.process_time() + _SECONDS
    self._constants = _constants(graph_def)

  def start(self) -> Dict[Tensor, _Dims]:
    """Returns the shapes that are tried first: those of unknown rank are scalars."""
    found = {tensor: self._filled(dims) if self._unknown[tensor] is not None else ()
             for tensor, dims in self._inferred({}).items()}
    return {**found, **{tensor: (self._batch,) for tensor in self._unknown if tensor[1] == VALUE}}

  def refused(self, found: Mapping[Tensor, _Dims]) -> Tuple[int, str]:
    """Returns how many ops TensorFlow reads with these shapes, and why it refuses the next."""
    _write({node.name: node for node in self._readable.node}, found)
    reason = shape_analysis.contradiction(self._readable)
    failed = _FAILED.search(reason)
    return self._order.get(failed[1], 0) if failed else len(self._order), reason

  def changes(self, found: Mapping[Tensor, _Dims], reason: str) -> Iterator[Dict[Tensor, _Dims]]:
    """Yields other shapes, the most plausible ones first."""
    failed = _FAILED.search(reason)
    if failed is None:
      return
    above = set(reachable([failed[1]], lambda name: [
        op_of(text) for text in self._nodes[name].input if op_of(text) in self._nodes]))
    near = [tensor for tensor in found if tensor[0] in above]
    ranks = [tensor for tensor in near if self._unknown[tensor] is None]
    # Sizes in TensorFlow's sentence; those in names of ops would not help.
    said = re.sub(r"'\{\{node.*?with input shapes", "", reason)
    sizes = [int(text) for text in re.findall(r"\d+", said)]
    sizes = list(dict.fromkeys(size for size in sizes if 1 <= size <= _MOST_SIZE))
    if re.search("rank|slice index|divisible", said):
      yield from self._ranked(found, ranks, sizes)
    for some in (sizes, [*self._constants, 1]):
      # All batches at once, unless rows are too short; then each dimension.
      batches = [{tensor: (size, *dims[1:]) if self._is_free(tensor, 0) and dims else dims
                  for tensor, dims in found.items()} for size in some]
      dimensions = [
          {**found, tensor: (*found[tensor][:axis], size, *found[tensor][axis + 1:])}
          for tensor in near for axis in reversed(range(len(found[tensor])))
          if self._is_free(tensor, axis) for size in some]
      yield from (*dimensions, *batches) if "divisible" in said else (*batches, *dimensions)
    yield from self._ranked(found, ranks, sizes)

  def message(self, reason: str, before: str) -> str:
    """Returns a sentence with the ops that contradict each other.

    Args:
      reason: why TensorFlow refuses the last shapes.
      before: why it refused others, which led to these; "" for none.
    """
    said = []
    for failed in filter(None, map(_FAILED.search, (reason, before))):
      inputs = [f"{op_of(text)!r} {dims}" for text, dims in zip(
          failed[2].split(", "), re.findall(r"\[.*?\]|<unknown>|\?", failed[3]))]
      said.append(f"op {failed[1]!r} refuses {' with '.join(inputs)}")
    return ("no shapes of the feeds fit the graph: "
            + (", and for other shapes ".join(said) or one_line(ValueError(reason), 300)))

  def _ranked(
      self, found: Mapping[Tensor, _Dims], tensors: List[Tensor], sizes: List[int]
  ) -> Iterator[Dict[Tensor, _Dims]]:
    """Yields shapes in which one feed has another rank, or rows of one of the sizes."""
    for tensor in tensors:
      for rank in _RANKS:
        if rank != len(found[tensor]):
          dims = self._inferred({**found, tensor: (-1,) * rank})[tensor]
          yield {**found, tensor: self._filled(dims)}
      for size in (*sizes, *self._constants):
        yield {**found, tensor: (self._batch, size)}

  def _inferred(self, found: Mapping[Tensor, _Dims]) -> Dict[Tensor, shapes.Shape]:
    """Returns dimensions of the feeds, as far as grappler finds them in the ops that read them."""
    _write(self._nodes, {tensor: dims for tensor, dims in {**self._unknown, **found}.items()
                         if tensor[1] != VALUE})
    outputs = Question(self._straight, [*self._nodes]).outputs()
    return {(name, port): shapes.dimensions(outputs[name][port].shape)
            for name, port in self._unknown if port != VALUE}

  def _is_free(self, tensor: Tensor, axis: int) -> bool:
    declared = self._unknown[tensor]
    return declared is None or declared[axis] < 0

  def _filled(self, dims: shapes.Shape) -> _Dims:
    """Returns dimensions with plausible sizes where they are unknown."""
    assert dims is not None
    length = _IMAGE if len(dims) > 3 and 0 < dims[-1] <= _COLOURS else _LENGTH
    return tuple(dim if dim >= 0 else length if axis else self._batch
                 for axis, dim in enumerate(dims))


def _write(nodes: Mapping[str, Any], found: Mapping[Tensor, shapes.Shape]) -> None:
  """Writes shapes and numbers of feeds into nodes."""
  for (name, port), dims in found.items():
    attr = nodes[name].attr
    if port == VALUE:
      feed_values.write_value(nodes[name], found.get((name, 0)) or (), (dims or (0,))[0])
      continue
    proto = (attr["output_shapes"].list.shape[port] if "output_shapes" in attr
             else attr["shape"].shape)
    shapes.write_shape(proto, dims)


def _sort(graph_def: GraphDef) -> Dict[str, int]:
  """Sorts the nodes of an acyclic graph, as TensorFlow then imports them; returns their places."""
  index = {node.name: i for i, node in enumerate(graph_def.node)}
  edges = np.array([(index[op_of(text)], i) for i, node in enumerate(graph_def.node)
                    for text in node.input], int).reshape(-1, 2)
  order, _ = topological_order(len(index), *edges.T)
  places = {graph_def.node[i].name: place for place, i in enumerate(order.tolist())}
  graph_def.node.sort(key=lambda node: places[node.name])
  return places


def _constants(graph_def: GraphDef) -> List[int]:
  """Returns sizes in the graph's constants, and their products, the most frequent ones first."""
  counts: Dict[int, int] = {}
  for node in graph_def.node:
    tensor = node.attr["value"].tensor
    if node.op == "Const" and tensor.dtype in (3, 9) and len(tensor.tensor_shape.dim) < 2:
      numbers = [int(each) for each in tf.make_ndarray(tensor).reshape(-1)[:8]]
      product = 1
      for number in reversed([each for each in numbers if each > 0]):
        product *= number
        for size in {number, product}:
          if 1 < size <= _MOST_SIZE:
            counts[size] = counts.get(size, 0) + 1
  return sorted(counts, key=lambda size: -counts[size])[:_MOST_CONSTANTS]
