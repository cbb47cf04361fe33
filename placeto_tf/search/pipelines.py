"""Pipelines: stages for the micro-batches, and their order as control edges of the graph.

`promising` estimates within a second, from the graph of one micro-batch, whether a pipeline can be
faster than the best placement so far. `pipeline` chooses stages for the replicated graph, tries
several orders, and returns the graph with the control edges of the best order. Searches start from
the result, and it can be used as it is.

Dimensions: N ops, N0 ops of one micro-batch, D devices, M micro-batches of each of G groups.
"""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.estimate import from_work, work_of
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import GraphError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.problem.candidates import nearest_allowed
from placeto_tf.problem.placement_problem import MEMORY_PENALTY_US_PER_BYTE
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph
from placeto_tf.replication.replicating import with_order
from placeto_tf.search import micro_batch_order
from placeto_tf.search.pipeline_stages import Stages
from placeto_tf.simulation.simulator import Simulator


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
  """Micro-batches in an order, and their stages.

  Attributes:
    replicated: the replicas with the control edges that fix the order.
    placement: [N] int32, device of each op by its stage.
  """

  replicated: ReplicatedGraph
  placement: np.ndarray


def promising(
    part: ComputationGraph, repeated: np.ndarray, cluster: Cluster, groups: int,
    micro_batches: int, best_us: float) -> bool:
  """Returns whether the estimate of a pipeline is below a step time.

  Args:
    part: the graph of one micro-batch.
    repeated: [N0] bool, whether every micro-batch has the op.
    cluster, groups, micro_batches: of the pipeline.
    best_us: best step time of all micro-batches so far; infinite if no placement fits in memory.

  Returns:
    False if a group has fewer than two devices; True if no placement fits so far; else whether the
    estimate without waits is below `best_us`.
  """
  if len(stage_devices(cluster, groups)[0]) < 2:
    return False
  # No placement fits so far; stages divide the variables, so they are worth a try.
  if not np.isfinite(best_us):
    return True
  costs = from_work(part, cluster, work_of(part))
  devices = stage_devices(cluster, groups)
  # One group stands for all: groups have equal stages on other devices.
  stages = Stages(part, costs, cluster, devices[0], repeated, micro_batches)
  exchange_us = 0.0
  if groups > 1:  # each stage sends its variables or the gradients for them to its neighbours
    # Tensors from micro-batches into ops that run once: the gradients, split over the stages.
    into = ~repeated[part.edge_consumers] & (part.edge_outputs >= 0)
    sent = costs.output_bytes[np.unique(part.edge_outputs[into])].sum() / devices.shape[1]
    exchange_us = sent * cluster.us_per_byte[devices[0], devices[1]].max()
  # Without waits the estimate is optimistic, so that no good pipeline is refused.
  return stages.estimate_us(stages.improved(stages.divide()), waits=False) + exchange_us < best_us


def pipeline(
    replicated: ReplicatedGraph, costs: OpCosts, cluster: Cluster, allowed: np.ndarray
) -> Pipeline:
  """Tries several pipelines and returns the best.

  Args:
    replicated: G groups of M micro-batches.
    costs: of its graph.
    cluster: its devices are divided among the groups; each device is a stage.
    allowed: [N, D] bool, where each op may run.

  Returns:
    The replicas with the control edges of the best order, and their stages.

  Raises:
    GraphError: micro-batches have branches or loops, into which no edges may lead.
  """
  graph = replicated.graph
  repeated = replicated.micro_batch_of_op >= 0
  # Only micro-batches get edges; branches and loops elsewhere do no harm.
  if not micro_batch_order.can_be_ordered([graph.op_types[op] for op in np.flatnonzero(repeated)]):
    raise GraphError(
        "the order of micro-batches cannot be written into a graph whose examples go through "
        "branches or loops of TensorFlow; leave the number of micro-batches out")
  placement = _placed(replicated, cluster, allowed)
  edges = _best_order(replicated, costs, cluster, placement)
  if edges is None:
    raise GraphError("micro-batches wait for one another in a circle")
  # Names carry the edges and the placement over to the ordered graph's numbering.
  names, index = replicated.graph.op_names, replicated.graph.op_index
  ordered = with_order(replicated, [(names[u], names[v]) for u, v in edges])
  return Pipeline(ordered, placement[[index[name] for name in ordered.graph.op_names]])


def _best_order(
    replicated: ReplicatedGraph, costs: OpCosts, cluster: Cluster, placement: np.ndarray
) -> Optional[List[Tuple[int, int]]]:
  """Finds the best order; returns its edges.

  Fewer micro-batches are under way if memory is short.
  """
  graph, count = replicated.graph, replicated.micro_batches
  # Replicas are numbered group-major, M micro-batches each; ops that run once count as group 0.
  group = np.maximum(replicated.replica_of_op, 0) // count
  best: Optional[Tuple[bool, float, List[Tuple[int, int]]]] = None
  # Most micro-batches in flight first; fewer only while none of the orders fits in memory.
  for in_flight in sorted({count, count // 2, min(count, 4), min(count, 2)} - {0, 1}, reverse=True):
    for first in (micro_batch_order.OLDEST, micro_batch_order.SHALLOWEST):
      edges = micro_batch_order.order_edges(
          graph, costs, cluster, placement, replicated.micro_batch_of_op, group, in_flight, first)
      if edges is None:
        continue
      ordered = micro_batch_order.with_edges(graph, edges)
      found = Simulator(ordered, costs, cluster).simulate(placement)
      excess = np.maximum(found.peak_memory_bytes - cluster.memory_bytes, 0).sum()
      # Orders that fit come before all others, then the least objective.
      rank = (excess > 0, found.step_time_us + MEMORY_PENALTY_US_PER_BYTE * float(excess), edges)
      if best is None or rank[:2] < best[:2]:
        best = rank
    if best is not None and not best[0]:
      break
  return None if best is None else best[2]


def _placed(replicated: ReplicatedGraph, cluster: Cluster, allowed: np.ndarray) -> np.ndarray:
  """Places the stages of all groups, each on a share of the devices, [N] int32."""
  graph, original = replicated.graph, replicated.original
  of_group = stage_devices(cluster, replicated.groups)
  # Ops of the original graph that micro-batches repeat, [N0].
  copies = (replicated.micro_batch_of_op >= 0) & (replicated.original_of_op >= 0)
  repeated = np.zeros(original.num_ops, dtype=bool)
  repeated[replicated.original_of_op[copies]] = True
  own = from_work(original, cluster, work_of(original))
  stages = Stages(original, own, cluster, of_group[0], repeated, replicated.micro_batches)
  # [L] position of each layer's device among the devices of group 0.
  stage = stages.improved(stages.divide())
  # Ops shared by all groups go, layer by layer, to the group with the fewest bytes of them so far.
  home = np.zeros(len(stage), dtype=np.int64)
  # [G, stages] bytes that each device holds for all groups; the largest layers are assigned first.
  load = np.zeros(of_group.shape)
  for layer in np.argsort(-stages.held_bytes, kind="stable").tolist():
    home[layer] = int(load[:, stage[layer]].argmin())
    load[home[layer], stage[layer]] += stages.held_bytes[layer]
  # [N] layer of each op, by the original op of which it is a copy, or the nearest original.
  layer = stages.layer[replicated.nearest_original]
  shared = replicated.replica_of_op == SHARED
  group = np.where(shared, home[layer], replicated.replica_of_op // replicated.micro_batches)
  placement = of_group[group, stage[layer]]
  # A copy that is colocated with an op that exists once goes to that op's device.
  of_set = np.full(graph.num_ops, -1, dtype=np.int64)
  # Reversed, so that of each colocated set the first shared op is written last and wins.
  order = np.concatenate([np.flatnonzero(shared), np.flatnonzero(~shared)])[::-1]
  of_set[graph.colocation[order]] = placement[order]
  return nearest_allowed(cluster, allowed, of_set[graph.colocation])


def stage_devices(cluster: Cluster, groups: int) -> np.ndarray:
  """Assigns devices to stages; the devices of one stage, over all groups, are neighbours.

  Groups exchange more data (variables, gradients) than stages do. Hosts get no stage unless all
  devices are hosts.

  Args:
    cluster: its devices are divided among the groups.
    groups: G, the number of groups of micro-batches.

  Returns:
    [G, stages] int64, the device of each stage of each group; leftover devices get no stage.
  """
  devices = [d for d, device in enumerate(cluster.devices) if not device.host] or list(
      range(cluster.num_devices))
  stages = len(devices) // groups
  # Devices in runs of G neighbours, one run a stage; transposed to [G, stages].
  return np.array(devices[:stages * groups], dtype=np.int64).reshape(stages, groups).T
