"""`PlacementProblem`: one graph, grouped, on one cluster, and the count of what was evaluated.

Every placer, learned or not, asks its problem for step times, so budgets are counted in the same
way for all: an evaluation is one computed step time of a placement, duplicates and starting points
included.

Legend: N ops, G groups, D devices, B placements side by side.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.costs import OpCosts, estimate_costs
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.grouping.heavy_edge import PlacedSets
from placeto_tf.problem.budget import Budget
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.simulation.simulator import Simulator

# Placeto section 4.1 adds 2 s for every GB over the limit to the step time.
MEMORY_PENALTY_US_PER_BYTE = 2e6 / 2**30


Exchange = Callable[[np.ndarray, float], Tuple[np.ndarray, float]]


def _no_exchange(placement: np.ndarray, objective_us: float) -> Tuple[np.ndarray, float]:
  """`PlacementProblem.exchange` where there is one search."""
  return placement, objective_us


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
  """Simulated placements, side by side.

  Attributes:
    step_time_us: [B] float64.
    peak_memory_bytes: [B, D] float64.
    objective_us: [B] float64, step time plus the memory penalty (2 s a GB over the limit).
    fits: [B] bool.
    start_us: [B, N] float64 start of each op, where it was asked for, else None.
  """

  step_time_us: np.ndarray  # [B]
  peak_memory_bytes: np.ndarray  # [B, D]
  objective_us: np.ndarray  # [B]
  fits: np.ndarray  # [B]
  start_us: Optional[np.ndarray] = None  # [B, N]

  def best(self) -> int:
    """Index of the best: one that fits before one that does not, then by objective, then first."""
    return int(np.lexsort((self.objective_us, ~self.fits))[0])


class Improvement(NamedTuple):
  """When the best placement changed, and what it was worth."""

  evaluations: int
  seconds: float
  objective_us: float
  fits: bool


@dataclasses.dataclass(eq=False)
class Account:
  """What has been evaluated: one for all groupings under which a problem is looked at.

  Attributes:
    of_islands: how many of the evaluations each island made, where searches ran as islands.
  """

  started: float
  evaluations: int = 0
  of_islands: Tuple[int, ...] = ()
  best_placement: Optional[np.ndarray] = None
  best_objective_us: float = float("inf")
  best_fits: bool = False
  improvements: List[Improvement] = dataclasses.field(default_factory=list)
  observer: Optional[Callable[[], None]] = None
  stopped: bool = False

  def __getstate__(self) -> Dict[str, Any]:
    """For another machine, whose clock began at another time; nobody observes it there."""
    return {**self.__dict__, "started": self.started - time.monotonic(), "observer": None}

  def __setstate__(self, state: Dict[str, Any]) -> None:
    self.__dict__.update(state, started=state["started"] + time.monotonic())


class PlacementProblem:
  """Evaluates placements of one grouped graph on one cluster and remembers the best.

  One placement is better than another if it fits and the other does not; then by its objective.

  Attributes:
    allowed_ops: [N, D] bool, allowed: [G, D] bool.
    sets: the ops that must share a device, from which searches make their units.
    replicated: the replicas that the graph consists of, if any, for placers that use them.
    islands: how many searches may work on it side by side; see `placeto_tf.search.islands`.
    run_islands: what runs them, as `placeto_tf.search.islands.run_on_threads` does, which is what
      None stands for.
    island: which of these this is the view of; 0 where there is one.
    exchange: called by a search at its own pace with its placement [N] and objective_us, it
      returns those to go on with: another island's where that is far better, else the same.
  """

  def __init__(
      self,
      graph: ComputationGraph,
      costs: OpCosts,
      cluster: Cluster,
      grouping: Grouping,
      *,
      allowed_ops: Optional[np.ndarray] = None,
      simulator: Optional[Simulator] = None,
  ):
    """Args: allowed_ops narrows `allowed_devices(graph, cluster)`, for pinned ops."""
    self.graph, self.costs, self.cluster, self.grouping = graph, costs, cluster, grouping
    if grouping.num_ops != graph.num_ops:
      raise PlacementError(
          f"the grouping is of {grouping.num_ops} ops, the graph has {graph.num_ops}")
    self.simulator = simulator or Simulator(graph, costs, cluster)
    self.allowed_ops = allowed_devices(graph, cluster) if allowed_ops is None else allowed_ops
    self.sets = PlacedSets(graph, costs, self.allowed_ops, graph.colocation)
    self.allowed = self._allowed_groups()
    self.replicated: Optional[ReplicatedGraph] = None
    self.islands, self.island = 1, 0
    self.run_islands: Optional[Callable[..., None]] = None
    self.exchange: Exchange = _no_exchange
    self._account = Account(time.monotonic())

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
  ) -> PlacementProblem:
    """The problem of a graph on a cluster: estimates costs and groups ops.

    Args:
      graph, cluster: the graph to place, and the devices.
      costs: known costs, or the source for `estimate_costs`.
      grouping, max_groups: as for `group_ops`.
      allowed_ops: [N, D] narrows `allowed_devices(graph, cluster)`, for pinned ops.
    """
    if isinstance(costs, str):
      costs = estimate_costs(graph, cluster, source=costs)
    allowed = allowed_devices(graph, cluster) if allowed_ops is None else allowed_ops
    groups = group_ops(graph, costs, allowed, max_groups=max_groups, method=grouping)
    return cls(graph, costs, cluster, groups, allowed_ops=allowed)

  def _allowed_groups(self) -> np.ndarray:
    graph, cluster, grouping = self.graph, self.cluster, self.grouping
    allowed = np.ones((grouping.num_groups, cluster.num_devices), dtype=bool)
    np.logical_and.at(allowed, grouping.group_of_op, self.allowed_ops)
    if not allowed.any(axis=1).all():
      group = int(np.flatnonzero(~allowed.any(axis=1))[0])
      op = int(np.flatnonzero(grouping.group_of_op == group)[0])
      raise PlacementError(
          f"group {group}, of op {graph.op_names[op]!r}, has no device that all its ops may use; "
          "regroup, or pin fewer ops")
    return allowed

  def regrouped(self, grouping: Grouping) -> PlacementProblem:
    """The same problem in other groups: evaluations, the best and the clock are shared."""
    other = copy.copy(self)
    other.grouping = grouping
    other.allowed = other._allowed_groups()
    return other

  def renewed(self) -> PlacementProblem:
    """The same problem with nothing evaluated; the count and the clock start again."""
    other = copy.copy(self)
    other._account = Account(time.monotonic())
    return other

  def take_up(self, placement: Optional[np.ndarray], evaluations: int) -> None:
    """Goes on from an earlier run: its best placement [N], or None, and how many it evaluated."""
    if placement is not None:
      self.evaluate_ops(np.asarray(placement, dtype=np.int32))
    self._account.evaluations = evaluations

  def resume(self, account: Account) -> None:
    """Goes on from what was evaluated elsewhere."""
    best = account.best_placement
    self._account = dataclasses.replace(
        account, improvements=list(account.improvements), observer=None, stopped=False,
        best_placement=None if best is None else best.copy())  # Ray's own cannot be written to

  def island_view(self, island: int) -> PlacementProblem:
    """The same problem for one of several islands, which counts on from here by itself."""
    other = copy.copy(self)
    other.islands, other.island, other.run_islands = 1, island, None
    other.simulator = self.simulator.on_one_thread()
    other._account = dataclasses.replace(self._account, improvements=[], observer=None)
    return other

  def portable(self, *, with_shapes: bool) -> PlacementProblem:
    """The same problem for another process, without the file or live graph that it came from.

    Args:
      with_shapes: whether it keeps the GraphDef, from which some policies take shapes.
    """
    source = self.graph.source if with_shapes else None
    if source is not None:
      source = dataclasses.replace(source, proto=None, tf_graph=None, meta_graph=None)
    other = copy.copy(self)
    other.simulator = copy.copy(self.simulator)
    other.graph = other.simulator.graph = dataclasses.replace(self.graph, source=source)
    other.sets = PlacedSets(other.graph, self.costs, self.allowed_ops, other.graph.colocation)
    return other

  def snapshot(self) -> Account:
    """A copy of the account as it is now."""
    account = self._account
    return dataclasses.replace(account, improvements=list(account.improvements), observer=None)

  def take_in(self, before: Account, islands: Sequence[Account]) -> None:
    """Has the account be what it was before, and what islands did since.

    An island's n-th evaluation counts as the last one of every island's first n, so that threads
    cannot change the order.
    """
    each_used = [island.evaluations - before.evaluations for island in islands]
    used = sum(each_used)
    found = sorted(
        (min(used, len(islands) * (each.evaluations - before.evaluations)), number, each)
        for number, island in enumerate(islands) for each in island.improvements)
    improvements = list(before.improvements)
    unfit, objective_us = not before.best_fits, before.best_objective_us
    for turn, _, each in found:
      if (not each.fits, each.objective_us) < (unfit, objective_us):
        unfit, objective_us = not each.fits, each.objective_us
        improvements.append(each._replace(evaluations=before.evaluations + turn))
    best = min((before, *islands), key=lambda each: (not each.best_fits, each.best_objective_us))
    account = self._account
    account.improvements, account.evaluations = improvements, before.evaluations + used
    account.of_islands = tuple(
        map(sum, itertools.zip_longest(before.of_islands, each_used, fillvalue=0)))
    account.best_placement, account.best_fits = best.best_placement, best.best_fits
    account.best_objective_us = best.best_objective_us
    if account.observer is not None:
      account.observer()

  def stop(self) -> None:
    """Has every budget be used up from now on."""
    self._account.stopped = True

  def observe(self, observer: Optional[Callable[[], None]]) -> None:
    """Has `observer` called after each batch of evaluations; None ends that."""
    self._account.observer = observer

  @property
  def evaluations(self) -> int:
    """Placements evaluated so far."""
    return self._account.evaluations

  @property
  def evaluations_of_islands(self) -> Tuple[int, ...]:
    """How many of the evaluations each island made; empty where no search ran as islands."""
    return self._account.of_islands

  @property
  def best_placement(self) -> Optional[np.ndarray]:
    """[N] of the best placement so far, or None."""
    return self._account.best_placement

  @property
  def best_known(self) -> np.ndarray:
    """[N] of the best placement so far.

    Raises:
      PlacementError: nothing has been evaluated.
    """
    if self._account.best_placement is None:
      raise PlacementError("no placement has been evaluated yet; evaluate a start first")
    return self._account.best_placement

  @property
  def best_objective_us(self) -> float:
    """The objective of the best placement so far; infinite if there is none."""
    return self._account.best_objective_us

  @property
  def best_fits(self) -> bool:
    """Whether the best placement so far fits."""
    return self._account.best_fits

  @property
  def history(self) -> List[Tuple[int, float, float]]:
    """(evaluations, seconds, objective_us) at each improvement."""
    return [each[:3] for each in self._account.improvements]

  @property
  def num_groups(self) -> int:
    """G."""
    return self.grouping.num_groups

  @property
  def num_devices(self) -> int:
    """D."""
    return self.cluster.num_devices

  @property
  def seconds(self) -> float:
    """Seconds since the problem was made."""
    return time.monotonic() - self._account.started

  def exhausted(self, budget: Budget) -> bool:
    """Whether the budget is used up, counted since this problem was made."""
    return self._account.stopped or (
        budget.max_evaluations is not None and self.evaluations >= budget.max_evaluations
    ) or (budget.max_seconds is not None and self.seconds >= budget.max_seconds) or (
        budget.target_us is not None and self.best_fits
        and self.best_objective_us <= budget.target_us)

  def remaining_evaluations(self, budget: Budget) -> Optional[int]:
    """How many more placements may be evaluated; None where the budget has no such limit."""
    if budget.max_evaluations is None:
      return None
    return max(0, budget.max_evaluations - self.evaluations)

  def expected_evaluations(self, budget: Budget, evaluations: int, seconds: float) -> float:
    """About how many more placements the budget allows; infinitely many without a limit.

    Args:
      budget: of the rest.
      evaluations, seconds: the problem's own when it began what tells how many it does a second.
    """
    found = math.inf
    if budget.max_evaluations is not None:
      found = max(0, budget.max_evaluations - self.evaluations)
    if budget.max_seconds is not None:
      rate = (self.evaluations - evaluations) / max(1e-9, self.seconds - seconds)
      found = min(found, rate * max(0.0, budget.max_seconds - self.seconds))
    return found

  def evaluate(
      self, group_placements: np.ndarray, *, start_times: bool = False) -> Evaluation:
    """Evaluates placements of groups, [G] or [B, G] int32."""
    return self.evaluate_ops(
        self.grouping.expand(np.atleast_2d(group_placements)), start_times=start_times)

  def evaluate_ops(self, placements: np.ndarray, *, start_times: bool = False) -> Evaluation:
    """Evaluates placements of ops, [N] or [B, N] int32."""
    placements = np.atleast_2d(np.ascontiguousarray(placements, dtype=np.int32))
    start_us = np.empty(placements.shape, dtype=np.float64) if start_times else None
    step_time_us, peak_memory_bytes = self.simulator.simulate_many(placements, start_us=start_us)
    excess = np.maximum(peak_memory_bytes - self.cluster.memory_bytes, 0).sum(axis=1)
    evaluation = Evaluation(
        step_time_us, peak_memory_bytes, step_time_us + MEMORY_PENALTY_US_PER_BYTE * excess,
        excess == 0, start_us)
    b, found = evaluation.best(), None
    candidate = (not evaluation.fits[b], float(evaluation.objective_us[b]))
    if candidate < (not self.best_fits, self.best_objective_us):
      found = (placements[b].copy(), not candidate[0], candidate[1])
    self.book(len(placements), found, b + 1)
    return evaluation

  def book(
      self, evaluations: int, best: Optional[Tuple[np.ndarray, bool, float]] = None,
      turn: Optional[int] = None) -> None:
    """Takes evaluations into account.

    Args:
      evaluations: how many.
      best: (placement [N], whether it fits, objective_us) of the best one, where it is better than
        the best so far.
      turn: which of them that was, counted from 1; by default the last.
    """
    account = self._account
    if best is not None:
      account.best_placement, account.best_fits, account.best_objective_us = best
      account.improvements.append(Improvement(
          account.evaluations + (evaluations if turn is None else turn), self.seconds, best[2],
          best[1]))
    account.evaluations += evaluations
    if account.observer is not None:
      account.observer()

  def project(self, placement: np.ndarray) -> np.ndarray:
    """[G] the device that has most of each group's compute time in a placement [N] of ops."""
    kinds = self.cluster.device_kinds[placement]
    weight = self.costs.compute_us[np.arange(self.graph.num_ops), kinds] + 1e-3
    votes = np.zeros((self.num_groups, self.num_devices))
    np.add.at(votes, (self.grouping.group_of_op, placement), weight)
    return np.where(self.allowed, votes, -1.0).argmax(axis=1).astype(np.int32)
