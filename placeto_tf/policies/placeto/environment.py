"""The decision process of `MoveProcess` as a tf-agents environment for bandits.

An arm is an option edge: the move of a group to a device. A step simulates one move; its reward is
the square root of the gain, and a move that makes the placement worse is undone. With `moves` K the
environment is a batch of K equal ones: a step simulates K moves from one placement. Observations
are dense arrays, padded to one size, because tf-agents takes no GraphTensor as observation;
`network.PlacetoNetwork` builds the GraphTensor from these arrays.

  per_arm/pair    [A, F] float32  features of option edges
  per_arm/group   [A] int32       their groups, as indices into the M observed groups
  per_arm/device  [A] int32       their devices
  num_actions     [] int32        number of open moves, which are the first arms; the option edges
                                  after them only serve messages
  global          [2 A, 2] int32  dataflow between groups, padded with edges from a group that does
                                  not exist to itself; only with messages

Dimensions: A arms, F pair features, M observed groups, D devices.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.specs import array_spec, bandit_spec_utils
from tf_agents.trajectories import time_step as ts

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.encoding.move_process import MoveProcess, ProcessConfig
from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.training import driving
from placeto_tf.training.problems import StartedProblem

ARM, GLOBAL, NUM_ACTIONS = (
    bandit_spec_utils.PER_ARM_FEATURE_KEY, bandit_spec_utils.GLOBAL_FEATURE_KEY,
    bandit_spec_utils.NUM_ACTIONS_FEATURE_KEY)
PAIR, GROUP, DEVICE = "pair", "group", "device"
# A gain of 4 % of the step time counts as 2, and so does a larger gain. The reward is the root of
# the gain; otherwise the few large gains of coarse groups would hide the many small ones.
GAIN_SCALE, GAIN_CLIP = 50.0, 2.0


def reward_of(fall: np.ndarray) -> np.ndarray:
  """Returns the rewards of moves: square roots of scaled gains, 0 for losses.

  Args:
    fall: decrease of the logarithm of the objective by each move, of any shape.

  Returns:
    float32 of the same shape, from 0 to the root of `GAIN_CLIP`.
  """
  return np.sqrt(np.clip(GAIN_SCALE * fall, 0.0, GAIN_CLIP)).astype(np.float32)


def observation_spec(arms: int, messages: bool) -> Dict[str, Any]:
  """Returns the spec of an observation.

  Args:
    arms: A.
    messages: whether the observation has the dataflow.

  Returns:
    A nest of array specs; see the module.
  """
  def whole(*shape):
    """Returns the spec of int32 numbers from 0 to A."""
    return array_spec.BoundedArraySpec(shape, np.int32, 0, arms)

  spec: Dict[str, Any] = {
      ARM: {PAIR: array_spec.ArraySpec((arms, NUM_FEATURES), np.float32),
            GROUP: whole(arms), DEVICE: whole(arms)},
      NUM_ACTIONS: array_spec.BoundedArraySpec((), np.int32, 1, arms)}
  if messages:
    spec[GLOBAL] = whole(2 * arms, 2)
  return spec


def observe(process: MoveProcess, arms: int, messages: bool) -> Dict[str, Any]:
  """Makes the observation of a process's present placement.

  Args:
    process: the process that is observed.
    arms: A; option edges beyond this number are left out.
    messages: whether the observation has the dataflow and closed option edges.

  Returns:
    A nest of arrays; see the module.
  """
  allowed = process.tables.allowed[process.some]  # [M, D]
  is_open = process.open[process.some]  # [M, D]
  # Arms: open moves first; each arm is a pair of group and device.
  rows, devices = np.nonzero(is_open)
  count = len(rows)
  if messages:
    # Closed option edges carry messages but cannot be chosen.
    others = np.nonzero(allowed & ~is_open)
    rows, devices = np.append(rows, others[0]), np.append(devices, others[1])
  rows, devices = rows[:arms], devices[:arms]
  padding = arms - len(rows)
  found: Dict[str, Any] = {
      ARM: {PAIR: np.pad(process.pairs[rows, devices], ((0, padding), (0, 0))),
            GROUP: np.pad(rows, (0, padding)).astype(np.int32),
            DEVICE: np.pad(devices, (0, padding)).astype(np.int32)},
      NUM_ACTIONS: np.array(max(1, min(count, arms)), np.int32)}
  if messages:
    # Padding edges lead from group A, which does not exist, to itself.
    found[GLOBAL] = np.full((2 * arms, 2), arms, np.int32)
    edges = flow_between(process)[:2 * arms]
    found[GLOBAL][:len(edges)] = edges
  return found


def flow_between(process: MoveProcess) -> np.ndarray:
  """Returns the dataflow between the observed groups.

  Args:
    process: the process that is observed.

  Returns:
    [K, 2] edges, as indices into the observed groups.
  """
  grouped = GroupedGraph.of(process.level)
  # [G] index of each group among the observed groups, -1 for other groups.
  place = np.full(grouped.num_groups, -1)
  place[process.some] = np.arange(len(process.some))
  edges = place[grouped.flow_ends]
  return edges[(edges >= 0).all(axis=1)]  # both ends are observed


class PlacetoEnvironment(driving.BatchEnvironment):
  """Episodes on problems of any graphs and clusters.

  Attributes:
    process: of the episode; None before the first episode.
  """

  def __init__(
      self, problems: Sequence[StartedProblem], config: ProcessConfig, *, arms: int,
      messages: bool = False, moves: int = 1):
    """Makes the environment.

    Args:
      problems: `begin` chooses one of these.
      config: of the process.
      arms: A; if the option edges of all groups are more, a random sample of groups is observed.
      messages: whether observations hold the inputs of messages.
      moves: K, the size of the batch; an environment of one move is not batched.
    """
    super().__init__(
        moves if moves > 1 else None, observation_spec(arms, messages),
        array_spec.BoundedArraySpec((), np.int32, 0, arms - 1, name="arm"))
    self._problems, self._config, self._arms, self._messages = problems, config, arms, messages
    self.process: Optional[MoveProcess] = None
    # tf-agents may reset before anything was chosen.
    self.begin(0, 0, np.random.default_rng(0))

  def begin(self, problem: int, start: int, rng: np.random.Generator) -> None:
    """Chooses problem, start and random numbers of the next episode.

    Args:
      problem: number of the problem.
      start: number of the start among the problem's starts.
      rng: seeds the process, and chooses among better moves.
    """
    self._chosen, self._current_time_step = (problem, start, int(rng.integers(2**31))), None
    self._rng = rng

  def _reset(self) -> ts.TimeStep:
    problem, start, seed = self._chosen
    given = self._problems[problem]
    self.process = MoveProcess(
        given.problem, given.problem.grouping.expand(given.starts[start]), self._config,
        # M groups, so that all their option edges fit into the arms.
        max(1, self._arms // given.problem.num_devices), np.random.default_rng(seed))
    return ts.restart(self._observe(), batch_size=self.batch_size)

  def _step(self, action) -> ts.TimeStep:
    process, arms = self.process, self._observed[ARM]
    assert process is not None  # tf-agents resets first
    # An action that is no open move, or comes after the end, changes nothing.
    reward = np.zeros(np.shape(action), np.float32)
    if not process.over and np.all(action < self._observed[NUM_ACTIONS]):
      groups, devices = process.some[arms[GROUP][action]], arms[DEVICE][action]
      reward = reward_of(
          process.step_side_by_side(groups, devices, self._rng) if self.batched else
          np.array(process.step(groups[None], devices[None])))
    found = self._observe()
    return (ts.termination(found, reward) if process.over else
            ts.transition(found, reward, np.ones_like(reward)))

  def _observe(self) -> Dict[str, Any]:
    assert self.process is not None
    self._observed = observe(self.process, self._arms, self._messages)
    # [K, ...], without copies, where K moves are simulated.
    return self._observed if not self.batched else tf.nest.map_structure(
        lambda value: np.broadcast_to(value, (self.batch_size, *np.shape(value))), self._observed)
