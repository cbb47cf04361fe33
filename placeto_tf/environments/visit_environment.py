"""The published decision process over placements of one grouped graph, many episodes side by side.

Placeto section 3.1: an episode starts from a placement and visits every group once; the action is
a device for the current group. All episodes of a batch take their steps together and end together.
A GraphTensor cannot be an observation in tf-agents. So the part that changes in an episode is
observed as dense arrays, and the network combines it with the fixed part (`encoding.GroupedGraph`).

  placement  [B, G] int32    device of each group now
  current    [B, 1] int32    the group whose device the next action names
  visited    [B, G] float32  1 for groups that an action of this episode has placed
  start      [B, G] float32  start of the group's main op over the step time, in [0, 1]
  graph      [B, 1] int32    number of the graph

The network reads `start` relative to the current group's. A group's main op is the op with the
longest compute time. The first op of a group says less: it is often a variable, which starts at 0
in any placement; and the last op is often the variable's update at the end of the step.

Graphs of a family have different numbers of groups. One network serves several graphs: G in
observations is the number of the largest graph, and observations of smaller graphs are padded with
0.

Dimensions: B episodes side by side, G groups (and steps of an episode), D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments import driving
from placeto_tf.errors import PlacementError, check_at_least, check_one_of
from placeto_tf.problem.placement_problem import PlacementProblem

PLACEMENT = "placement"
CURRENT = "current"
VISITED = "visited"
START = "start"
GRAPH = "graph"


def observation_spec(
    num_groups: int, num_devices: int, num_graphs: int = 1) -> Dict[str, array_spec.ArraySpec]:
  """Returns the spec of one episode's observation, without the batch dimension.

  Args:
    num_groups: G, of the largest graph.
    num_devices: D.
    num_graphs: of the family.

  Returns:
    Name -> spec: placement [G], current [1], visited [G], start [G], graph [1].
  """
  g = num_groups
  whole = {PLACEMENT: (g, num_devices), CURRENT: (1, g), GRAPH: (1, num_graphs)}  # length, bound
  return {
      **{name: array_spec.BoundedArraySpec((length,), np.int32, 0, bound - 1, name=name)
         for name, (length, bound) in whole.items()},
      **{name: array_spec.BoundedArraySpec((g,), np.float32, 0.0, 1.0, name=name)
         for name in (VISITED, START)}}


def action_spec(num_devices: int) -> array_spec.BoundedArraySpec:
  """Returns the spec of an action: [1], a device for the current group."""
  return array_spec.BoundedArraySpec((1,), np.int32, 0, num_devices - 1, name="device")


@dataclasses.dataclass(frozen=True)
class VisitConfig:
  """The rules of the decision process.

  Attributes:
    num_episodes: B.
    order: "topological", the order given to the environment, or "random", sampled in every episode.
    reward: "intermediate", the decrease of the objective from one placement to the next, or
      "final", minus the objective of the last placement; both are divided by the objective of the
      given start.
    start: "given", "best" (of all evaluated so far) or "random", sampled in every episode.
  """

  num_episodes: int = 8
  order: str = "topological"
  reward: str = "intermediate"
  start: str = "given"

  def __post_init__(self) -> None:
    check_one_of(("topological", "random"), self, "order")
    check_one_of(("intermediate", "final"), self, "reward")
    check_one_of(("given", "best", "random"), self, "start")
    check_at_least(1, self, "num_episodes")


class _State(NamedTuple):
  """Placements and their costs, row by row.

  Attributes:
    placement: [B, G] int32.
    objective_us: [B] float64.
    start: [B, G] float32 start times, divided by the step time.
  """

  placement: np.ndarray
  objective_us: np.ndarray
  start: np.ndarray

  def rows(self, index) -> _State:
    """Returns a copy of the rows of an index."""
    return _State(*(each[index].copy() for each in self))


class VisitEnvironment(driving.BatchEnvironment):
  """The episodes of one graph as a batched tf-agents environment.

  Attributes:
    config: the rules.
    num_groups, num_devices: G, D.
    scale_us: objective of the given start.
  """

  def __init__(
      self, problem: PlacementProblem, grouped: GroupedGraph, start: np.ndarray, *,
      config: Optional[VisitConfig] = None, seed: int = 0, graph: int = 0,
      num_graphs: int = 1, max_groups: Optional[int] = None,
      go_on: Callable[[], bool] = lambda: True):
    """Makes the environment and evaluates the given start once.

    Args:
      problem: evaluates placements of its groups.
      grouped: of the problem; episodes visit groups in its order, and a group starts with its main
        op.
      start: [G] int32, the given start, each group on an allowed device.
      config: the rules.
      seed: of random orders and random starts.
      graph: the number of this graph.
      num_graphs: number of graphs of the policy.
      max_groups: number of groups in observations; by default G.
      go_on: called after each step; if it returns False, episodes end with that step.

    Raises:
      PlacementError: the start takes no time.
    """
    self.config = config = config or VisitConfig()
    self.num_groups, self.num_devices = g, d = problem.allowed.shape
    self._padded_groups = max_groups or g
    super().__init__(
        config.num_episodes, observation_spec(self._padded_groups, d, num_graphs), action_spec(d))
    self._problem, self._grouped, self._allowed = problem, grouped, problem.allowed
    self._graph, self._go_on = graph, go_on
    self._rng = np.random.default_rng(seed)
    start = np.asarray(start, dtype=np.int32)
    self._given = self._evaluate(start[None])
    self._best = self._given.rows(slice(None))
    self.scale_us = float(self._given.objective_us[0])
    if not self.scale_us > 0:
      raise PlacementError(
          f"the start takes {self.scale_us} us; expected more than 0, or there is nothing to gain")

  @property
  def best(self) -> Tuple[np.ndarray, float]:
    """Returns the best placement that was evaluated, [G] int32, and its objective in us."""
    return self._best.placement[0].copy(), float(self._best.objective_us[0])

  @property
  def objective_us(self) -> np.ndarray:
    """Returns [B] float64, the objectives of the episodes' placements in us."""
    return self._state.objective_us.copy()

  def begin(self, seed: Sequence[int], best: np.ndarray) -> None:
    """Sets the seed of the samples of later episodes, and their best start.

    Args:
      seed: of all later samples.
      best: [G] int32, the best placement so far, which is evaluated.
    """
    self._rng = np.random.default_rng(seed)
    self._best = self._evaluate(np.array([best], dtype=np.int32))
    self._current_time_step = None  # the next step begins an episode

  def _reset(self) -> ts.TimeStep:
    b, g = self.config.num_episodes, self.num_groups
    if self.config.start == "random":
      # argmax of uniform numbers: a uniform choice among the allowed devices, [B, G, D] -> [B, G].
      samples = np.where(self._allowed, self._rng.random((b,) + self._allowed.shape), -1.0)
      self._state = self._evaluate(samples.argmax(axis=2).astype(np.int32))
    else:
      origin = self._best if self.config.start == "best" else self._given
      # Row 0, B times.
      self._state = origin.rows(np.zeros(b, dtype=np.int64))
    order = np.broadcast_to(self._grouped.order, (b, g))
    if self.config.order == "random":
      # Each row is permuted independently.
      order = self._rng.permuted(order, axis=1)
    self._order = order.astype(np.int32)
    self._visited = np.zeros((b, g), dtype=np.float32)
    self._t = 0
    return ts.restart(self._observe(), batch_size=b)

  def _step(self, action: np.ndarray) -> ts.TimeStep:
    """Puts the current group of each episode on a device, from [B, 1] devices."""
    before_us = self._state.objective_us.copy()
    rows, groups, devices = np.arange(len(action)), self._order[:, self._t], action[:, 0]
    proposed = self._state.placement.copy()
    # A device that is not allowed is no move; the network masks it, but other policies may not.
    may = self._allowed[groups, devices]
    proposed[rows[may], groups[may]] = devices[may]
    # Only placements that changed are simulated.
    changed = np.flatnonzero((proposed != self._state.placement).any(axis=1))
    if len(changed):
      for values, new in zip(self._state, self._evaluate(proposed[changed])):
        values[changed] = new
      # Strictly less: of equal placements the first one found is kept.
      b = int(self._state.objective_us.argmin())
      if self._state.objective_us[b] < self._best.objective_us[0]:
        self._best = self._state.rows(slice(b, b + 1))
    self._visited[rows, groups] = 1
    self._t += 1
    # Rewards of an episode sum to (first - last objective) / scale.
    if self.config.reward == "intermediate":
      reward = (before_us - self._state.objective_us) / self.scale_us
    elif self._t == self.num_groups:
      reward = -self._state.objective_us / self.scale_us
    else:
      reward = np.zeros(self.batch_size)
    found = self._observe(), reward.astype(np.float32)
    if self._t == self.num_groups or not self._go_on():
      return ts.termination(*found, outer_dims=(self.batch_size,))
    # Discount 1: the return is the plain sum of the rewards.
    return ts.transition(
        *found, np.ones(self.batch_size, np.float32), outer_dims=(self.batch_size,))

  def _evaluate(self, placements: np.ndarray) -> _State:
    found = self._problem.evaluate(placements)
    # [B, N] of all ops -> [B, G] of the main op of each group, over the step time.
    start = found.start_us[:, self._grouped.main_op] / np.maximum(found.step_time_us, 1e-9)[:, None]
    return _State(np.array(placements, dtype=np.int32), found.objective_us.copy(),
                  np.clip(start, 0, 1).astype(np.float32))

  def _observe(self) -> Dict[str, np.ndarray]:
    # After the last step nothing is left to place; the observation has the first groups as current.
    t = self._t % self.num_groups
    padding = [(0, 0), (0, self._padded_groups - self.num_groups)]
    # Columns of padding groups are 0; `np.pad` copies.
    return {
        **{name: np.pad(value, padding) for name, value in (
            (PLACEMENT, self._state.placement), (VISITED, self._visited),
            (START, self._state.start))},
        CURRENT: self._order[:, t:t + 1],
        GRAPH: np.full((self.batch_size, 1), self._graph, np.int32)}
