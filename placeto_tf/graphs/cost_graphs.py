"""Reads CostGraphDefs, as RunMetadata returns them: ops with costs, without types and attributes.

Nodes are identified by their `id`, which `input_info` and `control_input` refer to; ops are in the
order of the file. Kernels are unknown, so every op may run on any device.

After a run on several devices the runtime writes one part per device. Each part begins with a
`_SOURCE` and a `_SINK` of its own, which are left out. The ids of a part begin at about the last id
of the part before, so ids may repeat. A tensor leaves a part by a final node "name/_N" and
enters another by a node "name/_N+1"; the file has no edge between these nodes, so it is added.

Dimensions: M nodes of the file, E edges.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs import traversal
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph, GraphSource, check_unique
from placeto_tf.graphs.fetches import Endpoint, find_endpoint
from placeto_tf.graphs.node_table import NodeTable
from placeto_tf.graphs.op_defs import OpDefs
from placeto_tf.graphs.pruning import prune

UNKNOWN_TYPE = "Unknown"
_BORDERS = ("_SOURCE", "_SINK")
_SIZES = ("temporary_memory_size", "persistent_memory_size", "compute_cost", "compute_time",
          "memory_time")
# NextIteration ops as users' loops, and lowered ones, name them.
_GOES_ROUND = re.compile(r"(?:.*/)?(?:(?:Ref)?NextIteration(?:_\d+)?|next/_\d+)\Z")
# Names of the control loops that the runtime adds to start iterations on other devices.
_CONTROL_LOOP = "_cloop"
_TRANSFER = re.compile(r"(.*/_)(\d+)\Z")


def from_cost_graph(source: GraphSource, fetches: Optional[Sequence[str]]) -> ComputationGraph:
  """Turns a CostGraphDef into a graph.

  Args:
    source: the source, with the CostGraphDef.
    fetches: names of ops or tensors; None keeps all ops and fetches outputs of the final ops.

  Returns:
    The graph. Op types are unknown, and every op has a kernel on every device.

  Raises:
    GraphError: there are no nodes, a name or id appears twice, an input or a fetch does not exist,
      a size is negative, or there is a cycle.
  """
  proto = source.proto
  kept = np.array([node.name not in _BORDERS for node in proto.node], dtype=bool)
  in_file = np.flatnonzero(kept)
  nodes = [proto.node[i] for i in in_file.tolist()]
  if not nodes:
    raise GraphError("the graph has no ops but _SOURCE and _SINK; expected the ops of a step")
  names = [node.name for node in nodes]
  check_unique(names)
  for node in nodes:
    for field in _SIZES:
      if getattr(node, field) < 0:
        raise GraphError(
            f"op {node.name!r} has {field} {getattr(node, field)}; expected a number that is not "
            "negative")
  producers, ports, consumers, goes_round = _edges(proto.node)
  # [E] by index among the nodes without borders.
  producers, consumers = (np.cumsum(kept)[ends] - 1 for ends in (producers, consumers))
  notes: Tuple[str, ...] = ()
  if goes_round.any():
    # Names of NextIteration ops are only a hint: back edges are removed only if there is a cycle.
    order, _ = traversal.topological_order(len(nodes), producers, consumers)
    if len(order) < len(nodes):
      ahead = ~goes_round
      producers, ports, consumers = producers[ahead], ports[ahead], consumers[ahead]
      notes = ("the edges that go round loops are left out: ops of loops are costed as they are",)
  types = [UNKNOWN_TYPE] * len(nodes)
  widths = [len(node.output_info) for node in nodes]
  table = NodeTable(
      nodes, names, types, {name: i for i, name in enumerate(names)}, OpDefs(),
      np.concatenate([[0], np.cumsum(widths, dtype=np.int64)]),
      np.zeros(sum(widths), dtype=np.int32), producers, ports, consumers,
      np.zeros(len(producers), dtype=np.int32))
  # The name of an op stands for all of its outputs.
  wanted: List[Endpoint] = []
  for end in [find_endpoint(table, name, "fetch") for name in (
      fetches or [node.name for node in nodes if node.is_final])]:
    wanted += [end] if end.port is not None else [
        Endpoint(end.name, end.node, port) for port in (None, *range(widths[end.node]))]
  if fetches is None:  # no op is left out
    wanted += [Endpoint(name, i, None) for i, name in enumerate(names)]
  step = prune(table, tuple(wanted), ())
  positions = step.positions.tolist()
  return ComputationGraph.from_edges(
      [names[i] for i in positions],
      types[:len(positions)],
      table.num_outputs[step.positions],
      np.stack([step.producers, step.ports, step.consumers], axis=1),
      fetched_outputs=step.fetched_outputs(table),
      assigned_devices=tuple(nodes[i].device for i in positions),
      fetches=tuple(fetches) if fetches is not None else (),
      source=dataclasses.replace(source, positions=in_file[step.positions]),
      notes=notes,
  )


def cost_nodes(graph: ComputationGraph) -> List[Any]:
  """Returns [N] the CostGraphDef.Node of each op of a graph read from a CostGraphDef.

  Raises:
    GraphError: the graph is from another source.
  """
  source = graph.source
  if source is None or source.positions is None or source.format != "cost_graph_def":
    raise GraphError("the graph was not read from a CostGraphDef, so it has no costs of its own")
  nodes = source.proto.node
  return [nodes[i] for i in source.positions.tolist()]


def _edges(nodes) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns [E] producers, ports, consumers, and whether each edge is a loop's back edge.

  Edges from and to `_SOURCE` and `_SINK` are left out.
  """
  # Each part of a run begins with _SOURCE, and has ids of its own.
  parts = np.cumsum([node.name == _BORDERS[0] for node in nodes]).tolist()
  index: Dict[Tuple[int, int], int] = {}
  for i, (part, node) in enumerate(zip(parts, nodes)):
    other = index.setdefault((part, node.id), i)
    if other != i:
      raise GraphError(
          f"ops {nodes[other].name!r} and {node.name!r} have the same id {node.id}; ids must "
          "be unique")
  names = [node.name for node in nodes]
  edges = []
  for i, node in enumerate(nodes):
    if node.name in _BORDERS:
      continue
    inputs = [(info.preceding_node, info.preceding_port) for info in node.input_info]
    for place, (number, port) in enumerate([*inputs, *((id, None) for id in node.control_input)]):
      producer = index.get((parts[i], number))
      if producer is None:
        raise GraphError(
            f"op {node.name!r} has an input from id {number}, which no op of the graph has; export "
            "the graph with all the ops that it needs")
      if names[producer] in _BORDERS:
        continue
      # Input 1 of a control loop's Merge is the back edge.
      control_loop = place == 1 and names[i].startswith(_CONTROL_LOOP) and (
          names[producer].startswith(_CONTROL_LOOP))
      back = port is not None and (bool(_GOES_ROUND.match(names[producer])) or control_loop)
      edges.append((producer, CONTROL if port is None else port, i, back))
  edges += _transfers(nodes, names, edges)
  table = np.array(edges, dtype=np.int64).reshape(-1, 4)
  return table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool)


def _transfers(nodes, names, edges) -> List[Tuple[int, int, int, bool]]:
  """Returns the edges from a part's sent tensors to the receiving nodes of other parts."""
  senders = [i for i, node in enumerate(nodes) if node.is_final and not node.output_info]
  if not senders:
    return []
  index = {name: i for i, name in enumerate(names)}
  # Sending node -> the (producer, port) of the tensor that it sends.
  sent: Dict[int, Tuple[int, int]] = {}
  for producer, port, consumer, _ in edges:
    if port != CONTROL:
      sent.setdefault(consumer, (producer, port))
  found = []
  for i in senders:
    match = _TRANSFER.match(names[i])
    # The receiver's number is the sender's plus one.
    receiver = index.get(f"{match.group(1)}{int(match.group(2)) + 1}") if match else None
    if receiver is not None and i in sent and not nodes[receiver].input_info:
      found.append((*sent[i], receiver, False))
  return found
