"""GraphDef -> `ComputationGraph`: fetches, pruning, loops, colocation, kernels, shapes of feeds.

Every format with nodes ends here. Readers return a `ReadGraph`; rewriting (such as inlining of
function calls) turns a GraphDef into a GraphDef before.

Legend: M nodes of the file, N needed ops, E edges.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs import fetches as fetches_lib
from placeto_tf.graphs import shapes, traversal
from placeto_tf.graphs.colocation import colocate
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph, GraphSource
from placeto_tf.graphs.functions import CALLS, inline_functions
from placeto_tf.graphs.kernels import KERNEL_TYPES, NO_GPU_NOTE, KernelSupport
from placeto_tf.graphs.loops import Loops, back_edges, find_loops
from placeto_tf.graphs.node_table import NodeTable, read_nodes


@dataclasses.dataclass(frozen=True)
class ReadGraph:
  """The result of a reader.

  Attributes:
    format: as in `GraphSource`.
    proto: that was read, never modified.
    graph_def: the nodes to work on.
    roles: the train op and the ops that only prepare or save.
    path: of the file, or None.
    text: whether the file is text.
    tf_graph: the live graph, or None.
    shape_hint: tensor name -> shape, if the reader knows more than the GraphDef.
    notes: assumptions of the reader.
    inline: whether function calls are inlined; a live graph has to keep its ops.
    meta_graph: as in `GraphSource`.
    fixed_devices: as in `GraphSource`.
  """

  format: str
  proto: Any
  graph_def: Any
  roles: fetches_lib.Roles = fetches_lib.Roles()
  path: Optional[str] = None
  text: bool = False
  tf_graph: Any = None
  shape_hint: Callable[[str], shapes.Shape] = lambda name: None
  notes: Tuple[str, ...] = ()
  inline: bool = True
  meta_graph: Any = None
  fixed_devices: Mapping[str, str] = dataclasses.field(default_factory=dict)


def from_graph_def(
    read: ReadGraph,
    *,
    fetches: Optional[Sequence[str]] = None,
    feeds: Optional[Sequence[str]] = None,
    batch_size: Optional[int] = None,
    feed_shapes: Optional[Mapping[str, Sequence[int]]] = None,
    trip_count: Optional[int] = None,
    split_loops: bool = False,
) -> ComputationGraph:
  """Prunes a graph to what the fetches need and turns that into arrays; see `load_graph`."""
  graph_def, notes = inline_functions(read.graph_def) if read.inline else (read.graph_def, ())
  table = read_nodes(graph_def)
  wanted, fetch_notes = fetches_lib.choose_fetches(table, fetches, read.roles)
  notes = read.notes + notes + fetch_notes
  given_shapes = shapes.check_given(batch_size, feed_shapes)
  cut, fed_ports = _cuts(
      table, (*(feeds or ()), *_fed_defaults(table, batch_size, given_shapes)))
  ahead = ~(back_edges(table.types, table.producers, table.consumers))
  open_edges = ~cut[table.consumers]
  keep = traversal.ancestors(
      table.num_nodes, table.producers[open_edges], table.consumers[open_edges],
      [endpoint.node for endpoint in wanted])
  positions = np.flatnonzero(keep)
  new_index = np.cumsum(keep) - 1
  inside = open_edges & keep[table.consumers]
  producers, ports, consumers = (
      new_index[table.producers[inside]], table.ports[inside], new_index[table.consumers[inside]])
  ahead = ahead[inside]
  nodes = [table.nodes[i] for i in positions.tolist()]
  names = [table.names[i] for i in positions.tolist()]

  bound, shape_notes = _feed_shapes(
      read, table, keep, cut, fed_ports, batch_size, given_shapes)
  order, _ = traversal.topological_order(len(nodes), producers[ahead], consumers[ahead])
  if len(order) == len(nodes):
    loops = find_loops(
        nodes, producers[ahead], ports[ahead], consumers[ahead], order, trip_count, bound)
  else:  # ComputationGraph names the op on the cycle
    loops = Loops(np.full(len(nodes), -1), np.ones(len(nodes)), ())
  edges = np.stack([producers[ahead], ports[ahead], consumers[ahead]], axis=1)
  if split_loops:
    told = np.insert(loops.signals, 1, CONTROL, axis=1)
    edges = np.concatenate([edges, told])
  widths = table.num_outputs[positions]
  offsets = np.concatenate([[0], np.cumsum(widths)])
  fetched = np.zeros(int(offsets[-1]), dtype=bool)
  for endpoint in wanted:
    if endpoint.port is not None:
      fetched[offsets[new_index[endpoint.node]] + endpoint.port] = True
  support = KernelSupport(table.op_defs)
  together = np.full(len(nodes), -1) if split_loops else loops.outermost
  colocation, has_kernel = _constraints(table, positions, together, support)
  if support.assumes_gpu:
    notes += (NO_GPU_NOTE,)
  if not read.inline and any(
      node.op in CALLS or table.op_defs.is_function(node.op) for node in nodes):
    notes += (
        "function calls of a live graph stay one op each; hand over its GraphDef to place the ops "
        "inside",)
  return ComputationGraph.from_edges(
      names,
      [table.types[i] for i in positions.tolist()],
      widths,
      edges,
      kernel_types=KERNEL_TYPES,
      fetched_outputs=fetched,
      colocation=colocation,
      has_kernel=has_kernel,
      executions=loops.executions,
      assigned_devices=tuple(node.device for node in nodes),
      fetches=tuple(endpoint.name for endpoint in wanted),
      feeds=tuple(bound),
      source=GraphSource(
          read.format, read.proto, read.path, read.text, read.tf_graph, graph_def, positions,
          bound, frozenset(table.names[i] for i in np.flatnonzero(cut & keep).tolist()),
          read.meta_graph, read.fixed_devices, trip_count, split_loops),
      notes=notes + loops.notes + shape_notes,
  )


def _constraints(
    table: NodeTable, positions: np.ndarray, outermost: np.ndarray, support: KernelSupport):
  """Colocation [N] and kernels [N, K] of the needed ops, given the whole file.

  TensorFlow places every op of a file before it prunes, so ops that are not needed (initialisers,
  savers) can tie needed ops together, or keep them from a device for which they have no kernel.
  """
  given_types = np.zeros(len(table.producers), dtype=np.int32)
  data = table.ports != CONTROL
  given_types[data] = table.output_types[
      (table.output_offsets[table.producers] + table.ports)[data]]
  loops = np.full(table.num_nodes, -1, dtype=np.int64)
  loops[positions] = outermost
  labels = colocate(
      table.nodes, table.names, table.producers, table.ports, table.consumers, given_types,
      table.input_types, loops)
  mates = np.flatnonzero(np.isin(labels, np.unique(labels[positions])))
  kernels = np.array([support.has_kernel(table.nodes[i]) for i in mates.tolist()], dtype=bool)
  of_op = np.zeros((table.num_nodes, kernels.shape[1]), dtype=bool)
  of_op[mates] = kernels
  needed = np.zeros(table.num_nodes, dtype=bool)
  needed[positions] = True
  others = np.ones_like(of_op)  # kernels of colocated ops that are not needed
  unneeded = mates[~needed[mates]]
  np.logical_and.at(others, labels[unneeded], of_op[unneeded])
  _, first, inverse = np.unique(labels[positions], return_index=True, return_inverse=True)
  return (first[inverse.reshape(-1)].astype(np.int32),
          of_op[positions] & others[labels[positions]])


def _fed_defaults(
    table: NodeTable, batch_size: Optional[int], given: Mapping[str, Sequence[int]]
) -> Sequence[str]:
  """Names of PlaceholderWithDefault ops that are fed because a size is given for them.

  The others give their default, which has a size of its own.
  """
  found = []
  for name, node in zip(table.names, table.nodes):
    if node.op == shapes.WITH_DEFAULT:
      declared = shapes.declared_shape(node)
      takes_batch = batch_size is not None and declared and declared[0] == -1 and (
          -1 not in declared[1:])
      if name in given or takes_batch:
        found.append(f"{name}:0")
  return found


def _cuts(table: NodeTable, feeds: Sequence[str]):
  """[M] bool ops whose inputs are cut because they are fed, and op -> fed ports."""
  cut = np.zeros(table.num_nodes, dtype=bool)
  fed: Dict[int, Set[int]] = {}
  for name in feeds:
    endpoint = fetches_lib.find_endpoint(table, name, "feed")
    if not table.num_outputs[endpoint.node]:
      raise GraphError(
          f"feed {name!r} ({table.types[endpoint.node]}) has no output that could be fed")
    fed.setdefault(endpoint.node, set()).add(endpoint.port or 0)
  # A partly fed op still runs for its other outputs.
  partly = {node for node, ports in fed.items() if len(ports) < table.num_outputs[node]}
  if partly:
    reads = np.isin(table.producers, list(partly)) & (table.ports != CONTROL)
    unfed = {
        producer for producer, port in zip(
            table.producers[reads].tolist(), table.ports[reads].tolist())
        if port not in fed[producer]}
    partly &= unfed
  cut[[node for node in fed if node not in partly]] = True
  return cut, fed


def _feed_shapes(read, table, keep, cut, fed, batch_size, given):
  """Tensor name -> shape of all feeds, and notes."""
  for name in given:
    if name not in table.index:
      raise GraphError(
          f"a shape is given for {name!r}, which is no op of the graph; correct feed_shapes")
  bound, unused = {}, []
  unknown: List[shapes.UnknownShape] = []
  binds_batch = False
  for i in np.flatnonzero(keep).tolist():
    node = table.nodes[i]
    if not (i in fed or node.op in shapes.PLACEHOLDERS):
      continue
    for port in sorted(fed.get(i, {0})):
      name = f"{node.name}:{port}"
      declared = shapes.declared_shape(node, port)
      if declared is None:
        declared = read.shape_hint(name)
      try:
        bound[name] = shapes.bind(name, declared, given.get(node.name), batch_size)
      except shapes.UnknownShape as error:
        unknown.append(error)
      binds_batch |= bool(declared) and declared[0] == -1
  if unknown:
    raise GraphError(shapes.unknown_shapes(unknown))
  for name in given:
    if f"{name}:0" not in bound:
      unused.append(f"the shape given for {name!r} is not used: the fetches do not need it fed")
  if batch_size is not None and not binds_batch:
    unused.append(f"batch size {batch_size} is not used: no feed has an unknown first dimension")
  return bound, tuple(unused)
