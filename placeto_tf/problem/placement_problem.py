"""`PlacementProblem`: one grouped graph on one cluster, the input of every placer.

Dimensions: N ops, G groups, D devices, B placements side by side.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Callable, Optional, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import OpCosts, estimate_costs
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.grouping.heavy_edge import PlacedSets
from placeto_tf.problem.host_options import offered_devices
from placeto_tf.problem.search_log import SearchLog
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.simulation.simulator import Simulator

# Placeto section 4.1 adds 2 s for every GB over the limit to the step time.
MEMORY_PENALTY_US_PER_BYTE = 2e6 / 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
  """Evaluated placements, side by side.

  Attributes:
    step_time_us: [B] float64, simulated, or of the problem's clock.
    peak_memory_bytes: [B, D] float64.
    objective_us: [B] float64, step time plus the memory penalty (2 s per GB over the limit).
    excess_bytes: [B] float64, bytes over the memory limits, summed over devices.
    start_us: [B, N] float64, start of each op in the simulation.
    simulated_us: [B] float64, step time of the simulation.
  """

  step_time_us: np.ndarray  # [B]
  peak_memory_bytes: np.ndarray  # [B, D]
  objective_us: np.ndarray  # [B]
  excess_bytes: np.ndarray  # [B]
  start_us: np.ndarray  # [B, N]
  simulated_us: np.ndarray  # [B]

  @property
  def fits(self) -> np.ndarray:
    """Returns whether each placement fits in memory, [B] bool."""
    return self.excess_bytes == 0

  def best(self) -> int:
    """Returns the index of the best: by least bytes over the limits, then objective, then index."""
    # The last key of lexsort is the first criterion; the sort is stable.
    return int(np.lexsort((self.objective_us, self.excess_bytes))[0])


@dataclasses.dataclass(frozen=True, eq=False)
class PlacementProblem:
  """One grouped graph on one cluster; its search log counts evaluations.

  Attributes:
    graph, costs, cluster: the graph to place, the costs of its ops, and the devices.
    grouping: G groups of ops that are placed together.
    allowed_ops: [N, D] bool; None allows the devices of `offered_devices`. Pins restrict them.
    simulator: of the graph; None makes one.
    replicated: the replicas of the graph, if any, for placers that use them.
    search_log: the search log, the same for all groupings of one problem.
    sets: the ops that must share a device, from which searches make their supernodes.
    clock: times placements, [B, N] -> [B] us, instead of the simulator; see `environments.timing`.
    allowed: [G, D] bool.
  """

  graph: ComputationGraph
  costs: OpCosts
  cluster: Cluster
  grouping: Grouping
  allowed_ops: np.ndarray = None  # type: ignore[assignment]  # [N, D]
  simulator: Simulator = None  # type: ignore[assignment]
  replicated: Optional[ReplicatedGraph] = None
  search_log: SearchLog = dataclasses.field(default_factory=SearchLog)
  sets: PlacedSets = None  # type: ignore[assignment]
  clock: Optional[Callable[[np.ndarray], np.ndarray]] = None
  allowed: np.ndarray = dataclasses.field(init=False)  # [G, D]

  def __post_init__(self) -> None:
    graph, costs, cluster = self.graph, self.costs, self.cluster
    if self.grouping.num_ops != graph.num_ops:
      raise PlacementError(
          f"the grouping is of {self.grouping.num_ops} ops, the graph has {graph.num_ops}")
    # The class is frozen, so defaults are set around its own __setattr__.
    put = functools.partial(object.__setattr__, self)
    if self.allowed_ops is None:
      put("allowed_ops", offered_devices(graph, cluster, costs))
    if self.simulator is None:
      put("simulator", Simulator(graph, costs, cluster))
    if self.sets is None:
      put("sets", PlacedSets(graph, costs, self.allowed_ops, graph.colocation))
    put("allowed", self._allowed_groups())

  @classmethod
  def build(
      cls,
      graph: ComputationGraph,
      cluster: Cluster,
      *,
      costs: Union[str, OpCosts] = "grappler",
      grouping: str = "heavy_edge",
      max_groups: int = 128,
      allowed_ops: Optional[np.ndarray] = None,
      replicated: Optional[ReplicatedGraph] = None,
  ) -> PlacementProblem:
    """Makes the problem of a graph on a cluster: estimates costs and groups ops.

    Args:
      graph, cluster: the graph to place, and the devices.
      costs: known costs, or the source for `estimate_costs`.
      grouping, max_groups: as for `group_ops`.
      allowed_ops, replicated: see the class.

    Raises:
      PlacementError: ops of one group have no device in common.
    """
    if isinstance(costs, str):
      costs = estimate_costs(graph, cluster, source=costs)
    allowed = offered_devices(graph, cluster, costs) if allowed_ops is None else allowed_ops
    groups = group_ops(graph, costs, allowed, max_groups=max_groups, method=grouping)
    return cls(graph, costs, cluster, groups, allowed, replicated=replicated)

  def _allowed_groups(self) -> np.ndarray:
    """Returns the devices that all ops of each group may use, [G, D] bool; raises without any."""
    graph, cluster, grouping = self.graph, self.cluster, self.grouping
    allowed = np.ones((grouping.num_groups, cluster.num_devices), dtype=bool)
    # A group may use the devices that all of its ops may use.
    np.logical_and.at(allowed, grouping.group_of_op, self.allowed_ops)
    if not allowed.any(axis=1).all():
      group = int(np.flatnonzero(~allowed.any(axis=1))[0])
      op = int(np.flatnonzero(grouping.group_of_op == group)[0])
      raise PlacementError(
          f"group {group}, of op {graph.op_names[op]!r}, has no device that all its ops may use; "
          "regroup, or pin fewer ops")
    return allowed

  def regrouped(self, grouping: Grouping) -> PlacementProblem:
    """Returns the problem in other groups; both share evaluations, best placement and clock."""
    return dataclasses.replace(self, grouping=grouping)

  def renewed(self) -> PlacementProblem:
    """Returns the same problem without evaluations; the count and the clock start again."""
    return dataclasses.replace(self, search_log=SearchLog(clock=self.search_log.clock))

  def portable(self, *, with_shapes: bool) -> PlacementProblem:
    """Returns the problem for another process, without its source file or live graph.

    Args:
      with_shapes: whether the GraphDef is kept, from which some policies take shapes.
    """
    source = self.graph.source if with_shapes else None
    if source is not None:
      # Live TensorFlow objects cannot be pickled.
      source = dataclasses.replace(source, proto=None, tf_graph=None, meta_graph=None)
    graph, simulator = dataclasses.replace(self.graph, source=source), copy.copy(self.simulator)
    simulator.graph = graph
    return dataclasses.replace(
        self, graph=graph, simulator=simulator, search_log=copy.deepcopy(self.search_log),
        sets=None)  # type: ignore[arg-type]

  @property
  def num_groups(self) -> int:
    """Returns the number of groups, G."""
    return self.grouping.num_groups

  @property
  def num_devices(self) -> int:
    """Returns the number of devices, D."""
    return self.cluster.num_devices

  def evaluate(self, group_placements: np.ndarray) -> Evaluation:
    """Returns the evaluation of placements of groups, [G] or [B, G], booked in the search log."""
    return self.evaluate_ops(self.grouping.expand(np.atleast_2d(group_placements)))

  def evaluate_ops(self, placements: np.ndarray) -> Evaluation:
    """Returns the evaluation of placements of ops, [N] or [B, N], booked in the search log."""
    placements = np.atleast_2d(np.ascontiguousarray(placements, dtype=np.int32))
    start_us = np.empty(placements.shape, dtype=np.float64)
    simulated_us, peak_memory_bytes = self.simulator.simulate_many(placements, start_us=start_us)
    step_time_us = simulated_us if self.clock is None else self.clock(placements)
    # [B] bytes over the limits, summed over devices.
    excess = np.maximum(peak_memory_bytes - self.cluster.memory_bytes, 0).sum(axis=1)
    evaluation = Evaluation(
        step_time_us, peak_memory_bytes, step_time_us + MEMORY_PENALTY_US_PER_BYTE * excess,
        excess, start_us, simulated_us)
    b, found, log = evaluation.best(), None, self.search_log
    rank = float(excess[b]), float(evaluation.objective_us[b])
    # Only the best of the batch can be the new best placement; memory comes before time.
    if rank < (log.best_excess_bytes, log.best_objective_us):
      found = (placements[b].copy(), *rank)
    log.book(len(placements), found, b + 1)
    return evaluation

  def project(self, placement: np.ndarray) -> np.ndarray:
    """Returns the device with most of each group's compute time, [G], in a placement [N]."""
    kinds = self.cluster.device_kinds[placement]
    # A little weight for ops without cost, so that they vote too.
    weight = self.costs.compute_us[np.arange(self.graph.num_ops), kinds] + 1e-3
    votes = np.zeros((self.num_groups, self.num_devices))
    # [G, D] weight of each group's ops on each device; devices that are not allowed lose.
    np.add.at(votes, (self.grouping.group_of_op, placement), weight)
    return np.where(self.allowed, votes, -1.0).argmax(axis=1).astype(np.int32)
