"""One move at a time over many problems: the environment that trains the device pointer.

An episode is a series of steps on one problem. Groups come in topological order, beginning at any
group; the action is a device for the group at hand; the reward is the fall of the objective, in
units of the mean share of a group. A move that makes the placement worse is charged and undone, so
that episodes see placements like those in inference. All rows of a batch are on the same problem,
each with its own start.

Legend: B rows side by side, G groups, D devices, P devices padded to the largest cluster, F
features, T steps per episode.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from placeto_tf.encoding.pair_features import NUM_FEATURES, PairState
from placeto_tf.encoding.pair_tables import PairTables
from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.problem.placement_problem import PlacementProblem

FEATURES, MASK = "features", "mask"
# A move is seldom worth more than a few hundredths of the step; larger gains are clipped.
REWARD_SCALE, REWARD_CLIP = 50.0, 2.0


def observation_spec(max_devices: int) -> Dict[str, array_spec.ArraySpec]:
  """Features [P, F] of the group at hand on each device; mask [P], 1 where it may go."""
  return {
      FEATURES: array_spec.ArraySpec((max_devices, NUM_FEATURES), np.float32, name=FEATURES),
      MASK: array_spec.BoundedArraySpec((max_devices,), np.float32, 0.0, 1.0, name=MASK),
  }


def action_spec(max_devices: int) -> array_spec.BoundedArraySpec:
  """A device."""
  return array_spec.BoundedArraySpec((), np.int32, 0, max_devices - 1, name="device")


@dataclasses.dataclass(frozen=True)
class MovesConfig:
  """The rules.

  Attributes:
    rows: B.
    steps: T.
    perturb: share of groups put on a random device in perturbed starts.
    pool: how many final placements of earlier episodes are kept per problem.
  """

  rows: int = 32
  steps: int = 32
  perturb: float = 0.15
  pool: int = 32

  def __post_init__(self) -> None:
    check_at_least(1, self, "rows", "steps", "pool")
    if not 0 <= self.perturb <= 1:
      raise PlacementError(f"perturb is {self.perturb}; expected a share from 0 to 1")


class MovesProblem:
  """A problem with its starts and the placements that episodes ended with."""

  def __init__(self, problem: PlacementProblem, starts: np.ndarray):
    """Args: starts: [S, G] int32, the best one first."""
    self.problem, self.tables = problem, PairTables.build(problem)
    self.starts = np.atleast_2d(np.asarray(starts, dtype=np.int32))
    self.pool: List[np.ndarray] = []
    if not len(self.tables.movable):
      raise PlacementError("no group of the problem can be moved; leave it out of the training")


class MovesEnvironment(py_environment.PyEnvironment):
  """A batched tf-agents environment; each episode is on a problem drawn at random."""

  def __init__(
      self, problems: Sequence[MovesProblem], max_devices: int, *,
      config: MovesConfig = MovesConfig(), seed: int = 0):
    """Raises PlacementError where there is no problem, or one with too many devices."""
    super().__init__(handle_auto_reset=True)
    if not problems:
      raise PlacementError("there is no problem to train on; give graphs and clusters")
    most = max(each.problem.num_devices for each in problems)
    if most > max_devices:
      raise PlacementError(
          f"a cluster has {most} devices, hosts included, and the observations have room for "
          f"{max_devices}; raise max_devices")
    self.config, self._problems, self._p = config, list(problems), max_devices
    self._rng = np.random.default_rng(seed)
    self.moved, self.improved = 0, 0  # of all steps, for summaries

  @property
  def batched(self) -> bool:
    """Rows come in batches."""
    return True

  @property
  def batch_size(self) -> int:
    """B."""
    return self.config.rows

  def observation_spec(self):
    """See `observation_spec`; of one row."""
    return observation_spec(self._p)

  def action_spec(self):
    """See `action_spec`; of one row."""
    return action_spec(self._p)

  @property
  def objective_us(self) -> np.ndarray:
    """[B] objectives of the rows' placements."""
    return self._objective_us.copy()

  def state_dict(self) -> Dict[str, Any]:
    """The state between episodes: the generator and the pools."""
    return {"rng": self._rng.bit_generator.state,
            "pools": [[row.tolist() for row in each.pool] for each in self._problems]}

  def load_state_dict(self, state: Dict[str, Any]) -> None:
    """Restores what `state_dict` returned between two episodes."""
    self._rng.bit_generator.state = state["rng"]
    for each, pool in zip(self._problems, state["pools"]):
      each.pool = [np.array(row, dtype=np.int32) for row in pool]
    self._current_time_step = None  # the next step begins an episode

  def _reset(self):
    self._index = int(self._rng.integers(len(self._problems)))
    self._one, b = self._problems[self._index], self.batch_size
    # Made each time: kept for hundreds of problems with hundreds of groups, it would fill the
    # memory.
    self._state = PairState(self._one.tables, b)
    placements = np.stack([self._start() for _ in range(b)])
    found = self._one.problem.evaluate(placements, start_times=True)
    self._placement, self._objective_us = placements, found.objective_us.copy()
    for row in range(b):
      self._observe_row(row, found, row)
    self._at = self._rng.integers(len(self._one.tables.movable), size=b)
    self._t = 0
    return ts.restart(self._observe(), batch_size=b)

  def _start(self) -> np.ndarray:
    """[G] the best start, another one, a perturbed one, or where an earlier episode ended."""
    one, draw = self._one, self._rng.random()
    if one.pool and draw < 0.4:
      placement = one.pool[int(self._rng.integers(len(one.pool)))].copy()
    elif draw < 0.7:
      placement = one.starts[0].copy()
    else:
      placement = one.starts[int(self._rng.integers(len(one.starts)))].copy()
    if self._rng.random() < 0.5:
      random = np.where(one.tables.allowed, self._rng.random(one.tables.allowed.shape), -1.0)
      hit = self._rng.random(len(placement)) < self.config.perturb
      placement = np.where(hit, random.argmax(axis=1), placement).astype(np.int32)
    return placement

  def _observe_row(self, row, found, at) -> None:
    self._state.observe(
        row, self._placement[row], found.start_us[at], found.step_time_us[at],
        found.peak_memory_bytes[at])

  def _step(self, action):
    rows = np.arange(self.batch_size)
    groups = self._groups()
    # A device that is not allowed is no move: the network masks it, others may not.
    d = self._one.problem.num_devices
    inside = np.minimum(action, d - 1)
    valid = (action < d) & self._one.tables.allowed[groups, inside]
    changed = np.flatnonzero(valid & (inside != self._placement[rows, groups]))
    reward = np.zeros(self.batch_size, np.float32)
    if len(changed):
      proposed = self._placement[changed].copy()
      proposed[np.arange(len(changed)), groups[changed]] = inside[changed]
      found = self._one.problem.evaluate(proposed, start_times=True)
      fall = 1 - found.objective_us / self._objective_us[changed]
      reward[changed] = np.clip(REWARD_SCALE * fall, -REWARD_CLIP, REWARD_CLIP)
      for at in np.flatnonzero(fall >= 0):
        row = changed[at]
        self._placement[row] = proposed[at]
        self._objective_us[row] = found.objective_us[at]
        self._observe_row(row, found, at)
      self.moved += len(changed)
      self.improved += int((fall > 0).sum())
    self._at += 1
    self._t += 1
    if self._t < self.config.steps:
      discount = np.ones(self.batch_size, np.float32)
      return ts.transition(self._observe(), reward, discount, outer_dims=(self.batch_size,))
    keep = self._rng.permutation(self.batch_size)[:max(1, self.config.pool // 4)]
    self._one.pool = ([self._placement[row].copy() for row in keep] + self._one.pool)[
        :self.config.pool]
    return ts.termination(self._observe(), reward, outer_dims=(self.batch_size,))

  def _groups(self) -> np.ndarray:
    movable = self._one.tables.movable
    return movable[self._at % len(movable)]

  def _observe(self) -> Dict[str, np.ndarray]:
    groups, d = self._groups(), self._one.problem.num_devices
    features = np.zeros((self.batch_size, self._p, NUM_FEATURES), np.float32)
    self._state.features(groups, features)
    mask = np.zeros((self.batch_size, self._p), np.float32)
    mask[:, :d] = self._one.tables.allowed[groups]
    return {FEATURES: features, MASK: mask}
