"""`MoveEnvironment`: the move process as a tf-agents environment for bandits.

An arm is an option edge: the move of a group to a device. A step simulates one move; its reward is
the square root of the gain, and a move that makes the placement worse is undone. While the process
gathers moves, a step adds one, and arm 0 simulates the gathered ones. With `moves` K the
environment is a batch of K equal ones: a step simulates K moves from one placement. Observations
are dense arrays, padded to one size, because tf-agents takes no GraphTensor as observation; a
network that reads the graph, such as a GNN, builds the GraphTensor from them (`graph_of`).

  per_arm/pair        [A, F] float32  features of option edges
  per_arm/group       [A] int32       their groups, as indices into the M observed groups; `STOP`
                                      for the arm that simulates the gathered moves
  per_arm/device      [A] int32       their devices
  per_arm/preference  [A] float32     the process's own preference, which policies add to scores;
                                      for `STOP`, the least score of a gathered move
  num_actions         [] int32        number of open moves, which are the first arms; the option
                                      edges after them cannot be chosen
  global              [2 A, 2] int32  dataflow between groups, padded with edges from a group that
                                      does not exist to itself; only with `dataflow`

Dimensions: A arms, F pair features, M observed groups, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Sequence

import numpy as np

from placeto_tf.encoding import schema  # its check comes before tf-agents
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.environments import driving
from placeto_tf.environments.move_process import MOST_GROUPS, MoveProcess
from placeto_tf.environments.problems import StartedProblem
from placeto_tf.environments.schedule import Schedule
from placeto_tf.errors import PlacementError
from placeto_tf.placements import Placement
from placeto_tf.problem.budget import Budget

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip
from tf_agents.specs import array_spec, bandit_spec_utils  # isort: skip
from tf_agents.trajectories import time_step as ts  # isort: skip

ARM, GLOBAL, NUM_ACTIONS = (
    bandit_spec_utils.PER_ARM_FEATURE_KEY, bandit_spec_utils.GLOBAL_FEATURE_KEY,
    bandit_spec_utils.NUM_ACTIONS_FEATURE_KEY)
PAIR, GROUP, DEVICE, PREFERENCE = schema.PAIR, "group", "device", "preference"
ARMS = 2049  # by default: of 256 groups on 8 devices, and the arm that stops
STOP = -1  # the group of the arm that simulates the gathered moves
_NEVER = -1e6  # preference of arms that are no moves
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


def observation_spec(arms: int, dataflow: bool) -> Dict[str, Any]:
  """Returns the spec of an observation.

  Args:
    arms: A.
    dataflow: whether the observation has it.

  Returns:
    A nest of array specs; see the module.
  """
  def whole(*shape, least=0):
    """Returns the spec of int32 numbers from `least` to A."""
    return array_spec.BoundedArraySpec(shape, np.int32, least, arms)

  spec: Dict[str, Any] = {
      ARM: {PAIR: array_spec.ArraySpec((arms, NUM_FEATURES), np.float32),
            GROUP: whole(arms, least=STOP), DEVICE: whole(arms),
            PREFERENCE: array_spec.ArraySpec((arms,), np.float32)},
      NUM_ACTIONS: whole(least=1)}
  if dataflow:
    spec[GLOBAL] = whole(2 * arms, 2)
  return spec


def action_spec(arms: int) -> array_spec.BoundedArraySpec:
  """Returns the spec of an action: [], an arm."""
  return array_spec.BoundedArraySpec((), np.int32, 0, arms - 1, name="arm")


def observe(process: MoveProcess, arms: int, dataflow: bool) -> Dict[str, Any]:
  """Makes the observation of a process's present placement.

  Args:
    process: the process that is observed.
    arms: A; option edges beyond this number are left out.
    dataflow: whether the observation has it, and closed option edges.

  Returns:
    A nest of arrays; see the module.
  """
  # Arms: open moves first; each arm is a pair of group and device.
  rows, devices = np.nonzero(process.open)
  stops, count = int(process.gathering), len(rows)
  # Closed option edges cannot be chosen, but are part of the graph, or the best gathered move.
  shown = process.tables.allowed[process.some] if dataflow else process.shown
  others = np.nonzero(shown & ~process.open)
  rows, devices = (
      np.append(*each)[:arms - stops] for each in ((rows, others[0]), (devices, others[1])))
  before, after = stops, arms - stops - len(rows)
  # The arm that stops gathering comes first, padding last.
  padding = before, after
  preference = np.where(process.shown, process.preferences(), _NEVER)[rows, devices]
  found: Dict[str, Any] = {
      ARM: {PAIR: np.pad(process.pairs[rows, devices], (padding, (0, 0))),
            GROUP: np.pad(rows, padding, constant_values=(STOP, 0)).astype(np.int32),
            DEVICE: np.pad(devices, padding).astype(np.int32),
            PREFERENCE: np.pad(preference, padding, constant_values=(
                process.least_score, _NEVER)).astype(np.float32)},
      NUM_ACTIONS: np.array(max(1, min(count + stops, arms)), np.int32)}
  if dataflow:
    # Padding edges lead from group A, which does not exist, to itself.
    found[GLOBAL] = np.full((2 * arms, 2), arms, np.int32)
    edges = flow_between(process)[:2 * arms]
    found[GLOBAL][:len(edges)] = edges
  return found


def flow_between(process: MoveProcess) -> np.ndarray:
  """Returns the dataflow between the observed groups.

  Returns:
    [K, 2] edges, as indices into the observed groups.
  """
  grouped = GroupedGraph.of(process.level)
  # [G] index of each group among the observed groups, -1 for other groups.
  place = np.full(grouped.num_groups, -1)
  place[process.some] = np.arange(len(process.some))
  edges = place[grouped.flow_ends]
  return edges[(edges >= 0).all(axis=1)]  # both ends are observed


def graph_of(observation: Dict[str, Any]) -> tfgnn.GraphTensor:
  """Builds the GraphTensor of observations, for networks that read the graph.

  Args:
    observation: B of them, with the dataflow.

  Returns:
    One GraphTensor of B components, whose option edges are the arms, in the same order, with the
    feature "pair". A component has A groups, one more group for padding edges, and A devices.
  """
  arms = observation[ARM]
  b, a = tf.unstack(tf.shape(arms[GROUP]))
  nodes = a + 1  # nodes of a component
  first = tf.range(b)[:, None] * nodes  # of each component

  def flat(ends):
    """Returns [B n] node numbers in the whole GraphTensor, from [B, n] within components."""
    return tf.reshape(ends + first, [-1])

  flow = observation[GLOBAL]  # [B, K, 2]
  return tfgnn.GraphTensor.from_pieces(
      node_sets={name: tfgnn.NodeSet.from_fields(sizes=tf.fill([b], nodes), features={})
                 for name in (schema.GROUP, schema.DEVICE)},
      edge_sets={
          schema.OPTION: tfgnn.EdgeSet.from_fields(
              sizes=tf.fill([b], a), features={PAIR: tf.reshape(arms[PAIR], [b * a, -1])},
              adjacency=tfgnn.Adjacency.from_indices(
                  (schema.GROUP, flat(tf.maximum(arms[GROUP], 0))),
                  (schema.DEVICE, flat(arms[DEVICE])))),
          schema.DATAFLOW: tfgnn.EdgeSet.from_fields(
              sizes=tf.fill([b], tf.shape(flow)[1]), features={},
              adjacency=tfgnn.Adjacency.from_indices(
                  (schema.GROUP, flat(flow[..., 0])), (schema.GROUP, flat(flow[..., 1]))))})


class MoveEnvironment(driving.BatchEnvironment):
  """Episodes on problems of any graphs and clusters.

  Attributes:
    problems: of the episodes; arms: A.
    process: of the episode; None before the first episode.
  """

  def __init__(
      self, problems: Sequence[StartedProblem], schedule: Optional[Schedule] = None, *,
      arms: int = ARMS, dataflow: bool = False, moves: int = 1,
      max_evaluations: Optional[int] = None, budget: Optional[Budget] = None, seed: int = 0):
    """Makes the environment.

    Args:
      problems: episodes are on a random one of these, from its best start; `begin` chooses another.
      schedule: of the process; with moves side by side, none are gathered.
      arms: A; if the option edges of all groups are more, a random sample of groups is observed.
      dataflow: whether observations have the dataflow between groups, and closed option edges, for
        networks that pass messages.
      moves: K, the size of the batch; an environment of one move is not batched.
      max_evaluations: the most placements that an episode evaluates.
      budget: of all episodes, if not of each; limits count from the beginning of search logs.
      seed: of the samples of all episodes for which `begin` gives no generator.
    """
    schedule = schedule or Schedule()
    if moves > 1:
      schedule = dataclasses.replace(schedule, several=0)
    self.arms = arms
    super().__init__(
        moves if moves > 1 else None, observation_spec(arms, dataflow), action_spec(arms))
    self.problems, self._schedule, self._dataflow = problems, schedule, dataflow
    self._max_evaluations, self._budget = max_evaluations, budget
    self.process: Optional[MoveProcess] = None
    self._rng, self._chosen = np.random.default_rng(seed), (0, 0)

  def begin(self, problem: int, start: int, rng: np.random.Generator) -> None:
    """Chooses problem, start and random numbers of the next episode.

    Args:
      problem: number of the problem.
      start: number of the start among the problem's starts.
      rng: seeds the process, and chooses among better moves.
    """
    self._chosen, self._current_time_step, self._rng = (problem, start), None, rng

  @property
  def placement(self) -> Placement:
    """Returns the best placement so far of the graph of the episode."""
    assert self.process is not None
    problem = self.process.problem
    return Placement.from_indices(
        problem.graph, problem.cluster, problem.search_log.best_known,
        step_time_us=problem.search_log.best_objective_us)

  def _reset(self) -> ts.TimeStep:
    number, start = self._chosen
    seed, given = int(self._rng.integers(2**31)), self.problems[number]
    # Later episodes, unless `begin` comes before.
    self._chosen = (int(self._rng.integers(len(self.problems))), 0) if len(self.problems) > 1 else (
        0, 0)
    problem, budget = given.problem, self._budget
    if self._max_evaluations is not None:
      budget = Budget(problem.search_log.evaluations + self._max_evaluations)
    self.process = MoveProcess(
        problem, problem.grouping.expand(given.starts[start]), self._schedule, budget=budget,
        rng=np.random.default_rng(seed),
        # M groups, so that all their option edges, and the arm that stops, fit into the arms.
        most_groups=min(MOST_GROUPS, max(1, (self.arms - 1) // problem.num_devices)))
    return ts.restart(self._observe(), batch_size=self.batch_size)

  def _step(self, action) -> ts.TimeStep:
    process, arms = self.process, self._observed[ARM]
    assert process is not None  # tf-agents resets first
    action = np.asarray(action)
    if action.dtype.kind not in "iu" or ((action < 0) | (action >= self.arms)).any():
      raise PlacementError(f"action is {action}; expected whole numbers from 0 to {self.arms - 1}, "
                           "of which the first num_actions of the observation are moves")
    # An action that is no open move, or comes after the end, changes nothing.
    reward = np.zeros(np.shape(action), np.float32)
    if not process.over and np.all(action < self._observed[NUM_ACTIONS]):
      rows, devices = arms[GROUP][action], arms[DEVICE][action]
      if self.batched:
        reward = reward_of(process.step_side_by_side(rows, devices, self._rng))
      else:
        reward = reward_of(np.array(
            process.stop() if rows == STOP else process.step(int(rows), int(devices))))
    found = self._observe()
    return (ts.termination(found, reward) if process.over else
            ts.transition(found, reward, np.ones_like(reward)))

  def _observe(self) -> Dict[str, Any]:
    assert self.process is not None
    self._observed = observe(self.process, self.arms, self._dataflow)
    # [K, ...], without copies, where K moves are simulated.
    return self._observed if not self.batched else tf.nest.map_structure(
        lambda value: np.broadcast_to(value, (self.batch_size, *np.shape(value))), self._observed)
