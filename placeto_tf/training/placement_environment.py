"""Placeto's decision process over placements of one grouped graph, many episodes side by side.

Placeto section 3.1: an episode starts from a placement and visits every group once; the action is
a device for the group at hand. Here one step may visit K groups (the paper has K = 1), between
which nothing is evaluated. All episodes of a batch take their steps together and end together.

Legend: B episodes side by side, G groups, D devices, K groups placed in one step, T = ceil(G / K)
steps per episode.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Sequence

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.training import cost as cost_lib
from placeto_tf.training import observation as observation_lib


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
  """The rules of the decision process.

  Attributes:
    num_episodes: B.
    groups_per_step: K; 1 in the paper.
    order: "topological", the order given to the environment, or "random", drawn in every episode.
    reward: "intermediate", the fall of the objective from one placement to the next, or "final",
      minus the objective of the last placement; both over the objective of the given start.
    start: "given", "best" (of all evaluated so far) or "random", drawn in every episode.
    undo_steps: after every so many steps, a placement that is worse than at the last such check is
      reset to that one; 0 never does that, as in the paper.
    all_gains: whether the group at hand is evaluated on each device it may go to before each step,
      to be observed; needs groups_per_step 1.
  """

  num_episodes: int = 16
  groups_per_step: int = 1
  order: str = "topological"
  reward: str = "intermediate"
  start: str = "given"
  undo_steps: int = 0
  all_gains: bool = False

  def __post_init__(self) -> None:
    for name, valid in (("order", ("topological", "random")),
                        ("reward", ("intermediate", "final")),
                        ("start", ("given", "best", "random"))):
      if getattr(self, name) not in valid:
        raise PlacementError(
            f"{name} is {getattr(self, name)!r}; expected one of {', '.join(valid)}")
    check_at_least(1, self, "num_episodes", "groups_per_step")
    check_at_least(0, self, "undo_steps")
    if self.all_gains and self.groups_per_step != 1:
      raise PlacementError(
          f"groups_per_step is {self.groups_per_step}; expected 1, or all_gains is not defined")


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
    return _State(*(getattr(self, f.name)[index].copy() for f in dataclasses.fields(self)))

  def put(self, index, other: _State) -> None:
    for field in dataclasses.fields(self):
      getattr(self, field.name)[index] = getattr(other, field.name)


class PlacementEnvironment(py_environment.PyEnvironment):
  """A batched tf-agents environment; observations as in `environments.observation`."""

  def __init__(
      self, allowed: np.ndarray, cost: cost_lib.Cost, start: np.ndarray, *,
      order: Optional[np.ndarray] = None, config: Optional[EnvironmentConfig] = None,
      seed: int = 0):
    """Makes the environment and evaluates the given start once.

    Args:
      allowed: [G, D] bool, where each group may be placed.
      cost: see `environments.cost`.
      start: [G] int32, the given start.
      order: [G] int32, the order in which episodes visit groups, such as `GroupedGraph.order`; None
        is by number.
      config: the rules.
      seed: of random orders and random starts.

    Raises:
      PlacementError: the start has the wrong length or is not allowed.
    """
    super().__init__(handle_auto_reset=True)
    self.config = config = config or EnvironmentConfig()
    self._allowed = np.asarray(allowed, dtype=bool)
    self._cost = cost
    self._rng = np.random.default_rng(seed)
    g, d = self._allowed.shape
    start = np.asarray(start, dtype=np.int32)
    if start.shape != (g,):
      raise PlacementError(
          f"the start has shape {start.shape}, expected [{g}], one device per group")
    if start.min() < 0 or start.max() >= d or not self._allowed[np.arange(g), start].all():
      inside = (start >= 0) & (start < d)
      wrong = int(np.flatnonzero(~(inside & self._allowed[np.arange(g), start % d]))[0])
      raise PlacementError(
          f"the start has group {wrong} on device {int(start[wrong])}, where it may not be placed")
    self._topological = np.arange(g) if order is None else np.asarray(order)
    self._k = min(config.groups_per_step, g)
    self._observation_spec = observation_lib.observation_spec(
        g, d, self._k, gains=config.all_gains)
    self._action_spec = observation_lib.action_spec(d, self._k)
    self._given = self._evaluate(start[None])
    self._best = self._given.rows(slice(None))
    self.scale_us = float(self._given.objective_us[0])
    if not self.scale_us > 0:
      raise PlacementError(
          f"the start takes {self.scale_us} us; expected more than 0, or there is nothing to gain")

  @property
  def batched(self) -> bool:
    """Episodes come in batches."""
    return True

  @property
  def batch_size(self) -> int:
    """B."""
    return self.config.num_episodes

  @property
  def num_groups(self) -> int:
    """G."""
    return len(self._allowed)

  @property
  def num_steps(self) -> int:
    """T."""
    return -(-len(self._allowed) // self._k)

  @property
  def best_placement(self) -> np.ndarray:
    """[G] int32: of all the environment has evaluated."""
    return self._best.placement[0].copy()

  @property
  def best_objective_us(self) -> float:
    """Of `best_placement`."""
    return float(self._best.objective_us[0])

  @property
  def placements(self) -> np.ndarray:
    """[B, G] int32: the episodes' placements."""
    return self._state.placement.copy()

  @property
  def objective_us(self) -> np.ndarray:
    """[B] float64: the objectives of those."""
    return self._state.objective_us.copy()

  def begin(self, seed: Sequence[int], best: np.ndarray) -> None:
    """Sets all that later episodes depend on: the seed of their draws, and their best start.

    Args:
      seed: of all later draws.
      best: [G] int32, the best placement so far, which is evaluated.
    """
    self._rng = np.random.default_rng(seed)
    self._best = self._evaluate(np.array([best], dtype=np.int32))

  def observation_spec(self):
    """See `environments.observation`; of one episode."""
    return self._observation_spec

  def action_spec(self):
    """[K] devices; of one episode."""
    return self._action_spec

  def _reset(self):
    b, (g, _) = self.batch_size, self._allowed.shape
    if self.config.start == "random":
      draws = np.where(self._allowed, self._rng.random((b,) + self._allowed.shape), -1.0)
      self._state = self._evaluate(draws.argmax(axis=2).astype(np.int32))
    else:
      origin = self._best if self.config.start == "best" else self._given
      self._state = origin.rows(np.zeros(b, dtype=np.int64))
    self._checked = self._state.rows(slice(None))
    order = np.broadcast_to(self._topological, (b, g))
    if self.config.order == "random":
      order = self._rng.permuted(order, axis=1)
    # Where K does not divide G, the last step visits the first groups of the order again.
    filled = np.concatenate([order, order], axis=1)[:, :self.num_steps * self._k]
    self._order = filled.reshape(b, self.num_steps, self._k).astype(np.int32)
    self._visited = np.zeros((b, g), dtype=np.float32)
    self._t = 0
    return ts.restart(self._observe(), batch_size=b)

  def _step(self, action):
    before = self._state.objective_us.copy()
    rows = np.arange(self.batch_size)[:, None]
    groups = self._order[:, self._t]  # [B, K]
    proposed = self._state.placement.copy()
    # A device that is not allowed is no move: the network masks it, others may not.
    keep = ~self._allowed[groups, action]
    proposed[rows, groups] = np.where(keep, proposed[rows, groups], action)
    changed = np.flatnonzero((proposed != self._state.placement).any(axis=1))
    if len(changed):
      self._state.put(changed, self._evaluate(proposed[changed]))
      self._keep_best()
    self._visited[rows, groups] = 1
    self._t += 1
    last = self._t == self.num_steps
    if self.config.undo_steps and (last or self._t % self.config.undo_steps == 0):
      self._undo_worse()
    if self.config.reward == "intermediate":
      reward = (before - self._state.objective_us) / self.scale_us
    elif last:
      reward = -self._state.objective_us / self.scale_us
    else:
      reward = np.zeros(self.batch_size)
    reward = reward.astype(np.float32)
    if last:
      return ts.termination(self._observe(), reward, outer_dims=(self.batch_size,))
    discount = np.ones(self.batch_size, dtype=np.float32)
    return ts.transition(self._observe(), reward, discount, outer_dims=(self.batch_size,))

  def _gain_of_each(self, groups: np.ndarray) -> np.ndarray:
    """[B, D] the fall of the objective, over the scale, if groups [B] went to each device."""
    here = self._state.placement[np.arange(self.batch_size), groups]
    other = self._allowed[groups].copy()
    other[np.arange(self.batch_size), here] = False
    rows, devices = np.nonzero(other)
    gains = np.zeros(other.shape, dtype=np.float32)
    if len(rows):
      placements = self._state.placement[rows]
      placements[np.arange(len(rows)), groups[rows]] = devices
      fall_us = self._state.objective_us[rows] - self._evaluate(placements).objective_us
      gains[rows, devices] = fall_us / self.scale_us
    return gains

  def _undo_worse(self) -> None:
    """Takes episodes that got worse back to the last check."""
    worse = np.flatnonzero(self._state.objective_us > self._checked.objective_us)
    self._state.put(worse, self._checked.rows(worse))
    self._checked = self._state.rows(slice(None))

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
    b = int(self._state.objective_us.argmin())
    if self._state.objective_us[b] < self._best.objective_us[0]:
      self._best = self._state.rows(slice(b, b + 1))

  def _observe(self) -> Dict[str, np.ndarray]:
    # After the last step nothing is left to place; the observation names the first groups.
    t = self._t % self.num_steps
    observation = {
        observation_lib.PLACEMENT: self._state.placement.copy(),
        observation_lib.CURRENT: self._order[:, t].copy(),
        observation_lib.VISITED: self._visited.copy(),
        observation_lib.START: self._state.start.copy(),
    }
    if self.config.all_gains:
      observation[observation_lib.GAINS] = (
          np.zeros((self.batch_size, self._allowed.shape[1]), np.float32)
          if self._t == self.num_steps else self._gain_of_each(self._order[:, t, 0]))
    return observation
