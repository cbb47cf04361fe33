"""Finds the part of a graph that a step runs: the ops between the feeds and the fetches.

Dimensions: M nodes of the file, N needed ops, E edges between needed ops.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError, option
from placeto_tf.graphs import shapes, traversal
from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.graphs.fetches import Endpoint, find_endpoint
from placeto_tf.graphs.loops import back_edges
from placeto_tf.graphs.node_table import NodeTable


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
  """The ops and edges that a step runs.

  Attributes:
    wanted: the fetches.
    fed: index into [M] -> ports that are fed, besides needed placeholders.
    fully_fed: [M] bool, ops whose inputs are not needed, because all of their outputs that are read
      are fed.
    positions: [N] index into [M] of each needed op.
    index: [M] index into [N]; meaningless for ops that are not needed.
    producers, ports, consumers: [E] edges between needed ops, by index into [N].
    goes_round: [E] bool, back edges of loops.
  """

  wanted: Tuple[Endpoint, ...]
  fed: Mapping[int, Set[int]]
  fully_fed: np.ndarray  # [M]
  positions: np.ndarray  # [N]
  index: np.ndarray  # [M]
  producers: np.ndarray  # [E]
  ports: np.ndarray  # [E]
  consumers: np.ndarray  # [E]
  goes_round: np.ndarray  # [E]

  def fetched_outputs(self, table: NodeTable) -> np.ndarray:
    """Returns [O] bool, the outputs of needed ops that are fetched."""
    # [N+1] first output of each op; port p of op i is offsets[i] + p.
    offsets = np.concatenate([[0], np.cumsum(table.num_outputs[self.positions])])
    fetched = np.zeros(int(offsets[-1]), dtype=bool)
    for endpoint in self.wanted:
      if endpoint.port is not None:
        fetched[offsets[self.index[endpoint.node]] + endpoint.port] = True
    return fetched


def prune(table: NodeTable, wanted: Tuple[Endpoint, ...], feeds: Sequence[str]) -> Step:
  """Keeps the ops that the fetches need.

  Args:
    table: all nodes.
    wanted: the fetches.
    feeds: names of tensors that are fed.

  Returns:
    N needed ops and E edges between them.

  Raises:
    GraphError: a feed does not exist, or an op is needed that only the body of a function can have.
  """
  fed = _fed_ports(table, feeds)
  fully_fed = _fully_fed(table, fed)
  # [E of the file] edges to follow: all except edges into ops whose outputs are all fed.
  followed = ~fully_fed[table.consumers]
  keep = traversal.ancestors(
      table.num_nodes, table.producers[followed], table.consumers[followed],
      [endpoint.node for endpoint in wanted])
  _check_runnable(table, keep, fed)
  # Edges between needed ops, in the order of the file.
  inside = followed & keep[table.consumers]
  # Index in the file -> index among the needed ops.
  index = np.cumsum(keep) - 1
  return Step(
      wanted, fed, fully_fed, np.flatnonzero(keep), index, index[table.producers[inside]],
      table.ports[inside], index[table.consumers[inside]],
      back_edges(table.types, table.producers, table.consumers)[inside])


def _check_runnable(table: NodeTable, keep: np.ndarray, fed: Mapping[int, Set[int]]) -> None:
  """Raises GraphError if a session could not run one of the ops to keep, [M] bool."""
  for i in np.flatnonzero(keep).tolist():
    name, kind = table.names[i], table.types[i]
    if kind == "_Arg" and i not in fed:
      raise GraphError(
          f"op {name!r} (_Arg) is an argument of a function, which no session runs without a "
          f"value; feed it with {option('feeds', [f'{name}:0'])}")
    if kind == "_Retval":
      raise GraphError(
          f"op {name!r} (_Retval) is a result of a function, which no session runs; fetch "
          f"{table.nodes[i].input[0]!r} instead, with {option('fetches')}")


def fed_defaults(
    table: NodeTable, batch_size: Optional[int], given: Mapping[str, Sequence[int]]) -> List[str]:
  """Returns the PlaceholderWithDefault ops that are fed, because the user gives their shape.

  All other such ops output their default value, which has a shape of its own.

  Args:
    table: all nodes.
    batch_size: for unknown first dimensions, or None.
    given: op name -> shape from the user.
  """
  found = []
  for name, node in zip(table.names, table.nodes):
    if node.op == shapes.WITH_DEFAULT:
      declared = shapes.declared_shape(node)
      # A batch size is enough only if all other dimensions are known.
      takes_batch = batch_size is not None and declared and declared[0] == -1 and (
          -1 not in declared[1:])
      if name in given or takes_batch:
        found.append(f"{name}:0")
  return found


def bind_feeds(
    table: NodeTable, step: Step, shape_hint: Any, batch_size: Optional[int],
    given: Mapping[str, Tuple[int, ...]],
) -> Tuple[Dict[str, shapes.Shape], Dict[str, Tuple[shapes.Shape, ...]], Tuple[str, ...]]:
  """Binds the shapes of all feeds, placeholders included, and of iterators.

  An iterator's op declares the shapes of its outputs; an unknown first dimension is the batch size.

  Args:
    table, step: the ops.
    shape_hint: tensor name -> shape, if the reader knows shapes that the GraphDef lacks.
    batch_size: for unknown first dimensions.
    given: op name -> shape from the user.

  Returns:
    Feed -> shape, iterator op -> shapes of its outputs, and notes on given sizes that are not used.
    Unknown dimensions are -1, and the shape of an unknown rank is None.

  Raises:
    GraphError: a given shape names no op or contradicts the graph.
  """
  for name in given:
    if name not in table.index:
      raise GraphError(
          f"a shape is given for {name!r}, which is no op of the graph; correct feed_shapes")
  bound: Dict[str, shapes.Shape] = {}
  iterators: Dict[str, Tuple[shapes.Shape, ...]] = {}
  binds_batch = False
  # Iterators and feeds declare shapes; placeholders are always fed.
  for i in step.positions.tolist():
    node = table.nodes[i]
    if node.op in shapes.ITERATORS and i not in step.fed:
      found = shapes.shapes_of_iterator(node, batch_size)
      if found is not None:
        binds_batch = True
        iterators[node.name] = found
      continue
    if not (i in step.fed or node.op in shapes.PLACEHOLDERS):
      continue
    for port in sorted(step.fed.get(i, {0})):
      name = f"{node.name}:{port}"
      declared = shapes.declared_shape(node, port)
      if declared is None:
        declared = shape_hint(name)
      bound[name] = shapes.bind(name, declared, given.get(node.name), batch_size)
      binds_batch |= bool(declared) and declared[0] == -1
  unused = [
      f"the shape given for {name!r} is not used: the fetches do not need it fed"
      for name in given if f"{name}:0" not in bound]
  if batch_size is not None and not binds_batch:
    unused.append(f"batch size {batch_size} is not used: no feed, and no iterator, has an "
        "unknown first dimension")
  return bound, iterators, tuple(unused)


def _fed_ports(table: NodeTable, feeds: Sequence[str]) -> Dict[int, Set[int]]:
  fed: Dict[int, Set[int]] = {}
  for name in feeds:
    endpoint = find_endpoint(table, name, "feed")
    if not table.num_outputs[endpoint.node]:
      raise GraphError(
          f"feed {name!r} ({table.types[endpoint.node]}) has no output that could be fed")
    fed.setdefault(endpoint.node, set()).add(endpoint.port or 0)
  return fed


def _fully_fed(table: NodeTable, fed: Mapping[int, Set[int]]) -> np.ndarray:
  """Returns the ops that need not run, [M] bool: all of their outputs that are read are fed."""
  fully_fed = np.zeros(table.num_nodes, dtype=bool)
  # A node with some fed outputs runs if another output is read.
  reads = np.isin(table.producers, list(fed)) & (table.ports != CONTROL)
  runs = {producer for producer, port in zip(
      table.producers[reads].tolist(), table.ports[reads].tolist()) if port not in fed[producer]}
  fully_fed[[node for node in fed if node not in runs]] = True
  return fully_fed
