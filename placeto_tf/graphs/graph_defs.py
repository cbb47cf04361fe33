"""Turns a GraphDef into a `ComputationGraph`, for all formats with nodes.

Readers return a `ReadGraph`. Then function calls are inlined (`functions`), nodes are checked and
become arrays (`node_table`), fetches are chosen (`fetches`), ops that the fetches need are kept
(`pruning`), and loops (`loops`), colocation (`colocation`) and kernels (`kernels`) are found.

Dimensions: M nodes of the file, N needed ops, E edges, K kernel device types.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, Mapping, Optional, Sequence, Tuple, cast

import numpy as np

from placeto_tf.graphs import feed_values, shapes, traversal
from placeto_tf.graphs.colocation import MOVED_WITH_OTHERS, colocate
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph, GraphSource
from placeto_tf.graphs.fetches import choose_fetches
from placeto_tf.graphs.functions import inline_functions
from placeto_tf.graphs.kernels import NO_GPU_NOTE, KernelSupport
from placeto_tf.graphs.loops import DEFAULT_TRIPS, frames_of, loops_of
from placeto_tf.graphs.node_table import NodeTable, read_nodes
from placeto_tf.graphs.pruning import bind_feeds, fed_defaults, prune


@dataclasses.dataclass(frozen=True)
class ReadGraph:
  """The result of a reader.

  Attributes:
    source: the source; its `graph_def` holds the nodes.
    train_ops: names in the collection train_op.
    shape_hint: tensor name -> shape, if the reader knows shapes that the GraphDef lacks.
    notes: assumptions of the reader.
    together: whether ops of a function call share a device, because a live graph keeps calls.
    fetches, feeds: names that the source itself states, or None.
  """

  source: GraphSource
  train_ops: Tuple[str, ...] = ()
  shape_hint: Callable[[str], shapes.Shape] = lambda name: None
  notes: Tuple[str, ...] = ()
  together: bool = False
  fetches: Optional[Tuple[str, ...]] = None
  feeds: Optional[Tuple[str, ...]] = None


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
  """Prunes a graph to the ops that the fetches need, and turns these ops into arrays.

  Args:
    read: the result of a reader.
    fetches, feeds: names of ops or tensors; None for those of the source. See `load_graph`.
    batch_size: for unknown first dimensions of feeds, or None.
    feed_shapes: op or tensor name -> dimensions, or None.
    trip_count: iterations of every loop; None for 10.
    split_loops: whether the ops of a loop may be on several devices.

  Returns:
    The graph, with notes on assumptions.

  Raises:
    GraphError: see `load_graph`.
    UnknownShapes: feeds have unknown dimensions.
  """
  graph_def = shapes.with_unknown_ranks(read.source.graph_def)
  notes = read.notes
  # Each step takes the nodes of the step before, and adds its notes.
  own_devices: Dict[str, str] = {}  # of ops in functions of a live graph
  graph_def, more_notes = inline_functions(graph_def, own_devices if read.together else None)
  notes += more_notes
  table = read_nodes(graph_def)
  wanted, more_notes = choose_fetches(
      table, read.fetches if fetches is None else fetches, read.train_ops)
  notes += more_notes
  given = shapes.check_given(batch_size, feed_shapes)
  feeds = (read.feeds if feeds is None else feeds) or ()
  step = prune(table, wanted, (*feeds, *fed_defaults(table, batch_size, given)))
  positions = step.positions
  bound, iterators, shape_notes = bind_feeds(table, step, read.shape_hint, batch_size, given)
  nodes = [table.nodes[i] for i in positions.tolist()]
  # The graph is acyclic without the back edges; ops on any other cycle are not in the order, and
  # `ComputationGraph` names one of them.
  ahead = ~step.goes_round
  producers, ports, consumers = step.producers[ahead], step.ports[ahead], step.consumers[ahead]
  order, _ = traversal.topological_order(len(nodes), producers, consumers)
  frames = frames_of(nodes, producers, consumers, order)
  loops = loops_of(
      frames, [float(DEFAULT_TRIPS if trip_count is None else trip_count)] * len(frames.names))
  support = KernelSupport(table.op_defs)
  # With split_loops, the ops of a loop need not be colocated.
  together = np.full(len(positions), -1) if split_loops else loops.outermost
  colocation, has_kernel = _constraints(table, positions, together, support)
  if support.assumes_gpu:
    notes += (NO_GPU_NOTE,)
  if read.together and len(graph_def.node) > len(read.source.graph_def.node):
    notes += (
        "all ops of a function call of a live graph share a device, but for ops on devices that "
        "the function states; hand over its GraphDef to place them one by one",)
  # An Exit waits for the last iteration: add a control edge from its NextIteration.
  edges = np.concatenate([
      np.stack([producers, ports, consumers], axis=1),
      np.insert(loops.ends, 1, CONTROL, axis=1)])
  if split_loops:
    edges = np.concatenate([edges, np.insert(loops.signals, 1, CONTROL, axis=1)])
  unknown = {name: shape for name, shape in bound.items() if shape is None or -1 in shape}
  unknown.update((f"{op}:{port}", shape) for op, outputs in iterators.items()
                 for port, shape in enumerate(outputs) if shape and shape[0] < 0)
  values, more_notes = feed_values.of_loops(nodes, {} if unknown else bound)
  graph = ComputationGraph.from_edges(
      [node.name for node in nodes],
      [node.op for node in nodes],
      table.num_outputs[positions],
      edges,
      fetched_outputs=step.fetched_outputs(table),
      colocation=colocation,
      has_kernel=has_kernel,
      executions=loops.executions,
      assigned_devices=tuple(node.device for node in nodes),
      fetches=tuple(endpoint.name for endpoint in wanted),
      feeds=tuple(bound),
      source=dataclasses.replace(
          read.source, graph_def=graph_def, positions=positions,
          feed_shapes=cast(Dict[str, Tuple[int, ...]], bound),
          feed_values=values, iterator_shapes=iterators,
          fully_fed_ops=frozenset(table.names[i] for i in positions.tolist() if step.fully_fed[i]),
          # Switches and the like follow other ops to any device.
          fixed_devices={**read.source.fixed_devices, **{
              node.name: own_devices[node.name] for node in nodes
              if node.name in own_devices and node.op not in MOVED_WITH_OTHERS}},
          trip_count=trip_count, split_loops=split_loops),
      notes=notes + shape_notes + (more_notes if trip_count is None else ()),
  )
  if unknown:
    raise shapes.UnknownShapes(shapes.unknown_shapes(unknown), graph)
  return graph


def _constraints(
    table: NodeTable, positions: np.ndarray, outermost: np.ndarray, support: KernelSupport
) -> Tuple[np.ndarray, np.ndarray]:
  """Returns the colocation [N] and kernels [N, K] of the needed ops, given the whole file.

  TensorFlow places every op of a file before it prunes. So an unneeded op (an initializer, a saver)
  can force needed ops onto one device, and exclude devices for which it has no kernel.
  """
  loops = np.full(table.num_nodes, -1, dtype=np.int64)
  loops[positions] = outermost
  labels = colocate(table, loops)
  # All ops of the file that share a set with a needed op.
  mates = np.flatnonzero(np.isin(labels, np.unique(labels[positions])))
  kernels = np.array([support.has_kernel(table.nodes[i]) for i in mates.tolist()], dtype=bool)
  of_op = np.zeros((table.num_nodes, kernels.shape[1]), dtype=bool)
  of_op[mates] = kernels
  needed = np.zeros(table.num_nodes, dtype=bool)
  needed[positions] = True
  # [M, K], at the label of a set: whether all unneeded ops of the set have a kernel.
  others = np.ones_like(of_op)  # kernels of colocated ops that are not needed
  unneeded = mates[~needed[mates]]
  np.logical_and.at(others, labels[unneeded], of_op[unneeded])
  # The label of each set is its smallest needed op, by index into [N].
  _, first, inverse = np.unique(labels[positions], return_index=True, return_inverse=True)
  return (first[inverse.reshape(-1)].astype(np.int32),
          of_op[positions] & others[labels[positions]])
