"""The published decision process over placements of one grouped graph, many episodes side by side.

`FamilyEnvironment` makes a tf-agents environment of those of several graphs.

Placeto section 3.1: an episode starts from a placement and visits every group once; the action is
a device for the group at hand. All episodes of a batch take their steps together and end together.

Dimensions: B episodes side by side, G groups, which are the steps of an episode, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.training import cost as cost_lib
from placeto_tf.training import observation as observation_lib


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
  """The rules of the decision process.

  Attributes:
    num_episodes: B.
    order: "topological", the order given to the environment, or "random", sampled in every episode.
    reward: "intermediate", the fall of the objective from one placement to the next, or "final",
      minus the objective of the last placement; both over the objective of the given start.
    start: "given", "best" (of all evaluated so far) or "random", sampled in every episode.
  """

  num_episodes: int = 8
  order: str = "topological"
  reward: str = "intermediate"
  start: str = "given"

  def __post_init__(self) -> None:
    for name, valid in (("order", ("topological", "random")),
                        ("reward", ("intermediate", "final")),
                        ("start", ("given", "best", "random"))):
      if getattr(self, name) not in valid:
        raise PlacementError(
            f"{name} is {getattr(self, name)!r}; expected one of {', '.join(valid)}")
    check_at_least(1, self, "num_episodes")


@dataclasses.dataclass
class _State:
  """Placements and their costs, row by row.

  Attributes:
    placement: [B, G] int32.
    objective_us: [B] float64.
    start: [B, G] float32, over the step time.
  """

  placement: np.ndarray
  objective_us: np.ndarray
  start: np.ndarray

  def rows(self, index) -> _State:
    """Returns a copy of the rows of an index."""
    return _State(*(getattr(self, f.name)[index].copy() for f in dataclasses.fields(self)))

  def put(self, index, other: _State) -> None:
    """Replaces rows in place.

    Args:
      index: [K] int numbers of rows.
      other: [K] rows that take their place.
    """
    for field in dataclasses.fields(self):
      getattr(self, field.name)[index] = getattr(other, field.name)


class PlacementEnvironment:
  """The episodes of one graph; observations as in `training.observation`, without the graph.

  Attributes:
    config: the rules.
    num_groups, num_devices: G, D.
    scale_us: objective of the given start.
  """

  def __init__(
      self, allowed: np.ndarray, cost: cost_lib.Cost, start: np.ndarray, *,
      order: Optional[np.ndarray] = None, config: Optional[EnvironmentConfig] = None,
      seed: int = 0):
    """Makes the environment and evaluates the given start once.

    Args:
      allowed: [G, D] bool, where each group may be placed.
      cost: see `training.cost`.
      start: [G] int32, the given start.
      order: [G] int32, the order in which episodes visit groups, such as `GroupedGraph.order`; None
        is by number.
      config: the rules.
      seed: of random orders and random starts.

    Raises:
      PlacementError: the start has the wrong length or is not allowed.
    """
    self.config = config = config or EnvironmentConfig()
    self._allowed = np.asarray(allowed, dtype=bool)
    self._cost = cost
    self._rng = np.random.default_rng(seed)
    self.num_groups, self.num_devices = g, d = self._allowed.shape
    start = np.asarray(start, dtype=np.int32)
    if start.shape != (g,):
      raise PlacementError(
          f"the start has shape {start.shape}, expected [{g}], one device per group")
    if start.min() < 0 or start.max() >= d or not self._allowed[np.arange(g), start].all():
      # start % d keeps the index within the table; `inside` rejects such groups anyway.
      inside = (start >= 0) & (start < d)
      wrong = int(np.flatnonzero(~(inside & self._allowed[np.arange(g), start % d]))[0])
      raise PlacementError(
          f"the start has group {wrong} on device {int(start[wrong])}, where it may not be placed")
    self._topological = np.arange(g) if order is None else np.asarray(order)
    self._given = self._evaluate(start[None])
    self._best = self._given.rows(slice(None))
    self.scale_us = float(self._given.objective_us[0])
    if not self.scale_us > 0:
      raise PlacementError(
          f"the start takes {self.scale_us} us; expected more than 0, or there is nothing to gain")

  @property
  def best_placement(self) -> np.ndarray:
    """Returns [G] int32, the best placement that the environment has evaluated."""
    return self._best.placement[0].copy()

  @property
  def best_objective_us(self) -> float:
    """Returns the objective of `best_placement`, in us."""
    return float(self._best.objective_us[0])

  @property
  def objective_us(self) -> np.ndarray:
    """Returns [B] float64, the objectives of the episodes' placements in us."""
    return self._state.objective_us.copy()

  def begin(self, seed: Sequence[int], best: np.ndarray) -> None:
    """Sets all that later episodes depend on: the seed of their samples, and their best start.

    Args:
      seed: of all later samples.
      best: [G] int32, the best placement so far, which is evaluated.
    """
    self._rng = np.random.default_rng(seed)
    self._best = self._evaluate(np.array([best], dtype=np.int32))

  def reset(self) -> observation_lib.Observation:
    """Begins new episodes in all rows and returns their first observation."""
    b, g = self.config.num_episodes, self.num_groups
    if self.config.start == "random":
      # argmax of uniform numbers: a uniform choice among the allowed devices, [B, G, D] -> [B, G].
      draws = np.where(self._allowed, self._rng.random((b,) + self._allowed.shape), -1.0)
      self._state = self._evaluate(draws.argmax(axis=2).astype(np.int32))
    else:
      origin = self._best if self.config.start == "best" else self._given
      # Row 0, B times.
      self._state = origin.rows(np.zeros(b, dtype=np.int64))
    order = np.broadcast_to(self._topological, (b, g))
    if self.config.order == "random":
      # Each row is permuted by itself.
      order = self._rng.permuted(order, axis=1)
    self._order = order.astype(np.int32)
    self._visited = np.zeros((b, g), dtype=np.float32)
    self._t = 0
    return self._observe()

  def step(self, action: np.ndarray) -> Tuple[observation_lib.Observation, np.ndarray]:
    """Puts the current group of each episode on a device.

    Args:
      action: [B, 1] devices.

    Returns:
      The next observation, and rewards [B] float32.
    """
    before_us = self._state.objective_us.copy()
    rows, groups, devices = np.arange(len(action)), self._order[:, self._t], action[:, 0]
    proposed = self._state.placement.copy()
    # A device that is not allowed is no move: the network masks it, others may not.
    may = self._allowed[groups, devices]
    proposed[rows[may], groups[may]] = devices[may]
    # Only placements that differ are simulated.
    changed = np.flatnonzero((proposed != self._state.placement).any(axis=1))
    if len(changed):
      self._state.put(changed, self._evaluate(proposed[changed]))
      self._keep_best()
    self._visited[rows, groups] = 1
    self._t += 1
    # Rewards of an episode sum to (first - last objective) / scale.
    if self.config.reward == "intermediate":
      reward = (before_us - self._state.objective_us) / self.scale_us
    elif self._t == self.num_groups:
      reward = -self._state.objective_us / self.scale_us
    else:
      reward = np.zeros(self.config.num_episodes)
    return self._observe(), reward.astype(np.float32)

  def _evaluate(self, placements: np.ndarray) -> _State:
    objective_us, components = self._cost(placements)
    objective_us = np.asarray(objective_us, dtype=np.float64)
    step_us = np.asarray(components.get(cost_lib.STEP_TIME_US, objective_us))[:, None]

    start_us = components.get(cost_lib.START_US)
    if start_us is None:
      start_us = np.zeros(placements.shape)
    start = np.clip(start_us / np.maximum(step_us, 1e-9), 0, 1).astype(np.float32)
    return _State(np.array(placements, dtype=np.int32), objective_us.copy(), start)

  def _keep_best(self) -> None:
    # Strictly less: of equal placements the first one found is kept.
    b = int(self._state.objective_us.argmin())
    if self._state.objective_us[b] < self._best.objective_us[0]:
      self._best = self._state.rows(slice(b, b + 1))

  def _observe(self) -> observation_lib.Observation:
    # After the last step nothing is left to place; the observation names the first groups.
    t = self._t % self.num_groups
    return {
        observation_lib.PLACEMENT: self._state.placement.copy(),
        observation_lib.CURRENT: self._order[:, t:t + 1].copy(),
        observation_lib.VISITED: self._visited.copy(),
        observation_lib.START: self._state.start.copy(),
    }
