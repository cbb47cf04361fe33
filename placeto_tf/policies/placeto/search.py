"""Trains Placeto on one graph and, by doing so, improves its placement.

The result is the best placement met on the way, which the problem remembers; the trained policy
is thrown away. One graph is a family of one: episodes are played and learned from as in training.

Legend: B episodes side by side, G groups, D devices, K groups placed in one step.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.policies.placeto.collecting import play
from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.learner import PlacetoLearner
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import placed_units
from placeto_tf.training import driving
from placeto_tf.training import observation as observation_lib
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.family_environment import FamilyEnvironment
from placeto_tf.training.placement_environment import PlacementEnvironment
from placeto_tf.training.schedules import spent_share
from placeto_tf.training.updates import attempt

_MIN_ROWS = 10  # of a chart
_IDLE_EPISODES = 20  # episodes in a row without an evaluation after which a search ends


def improve(
    problem: PlacementProblem,
    start: np.ndarray,
    budget: Budget,
    seed: int = 0,
    *,
    root_dir: Optional[str] = None,
    config: Optional[PlacetoConfig] = None,
    learns: bool = True,
    uniform: bool = False,
    weights: Optional[Sequence[np.ndarray]] = None,
    compiled: bool = False,
) -> None:
  """Trains Placeto on the problem's graph for the budget, starting from a placement.

  With `max_evaluations` alone the result is the same for the same seed on one machine, bit for
  bit. The search stops before a step whose evaluations could exceed the budget.

  Args:
    problem: counts the evaluations and remembers the best placement.
    start: [G] int32, or [N] devices of ops. A placement of ops that the problem's groups cannot
      express is a start too: the search then uses about as many groups, each on one device in it.
    budget: counted from the making of the problem.
    seed: of weights, actions and orders.
    root_dir: where TensorBoard events go (in train/); None writes none.
    config: see `PlacetoConfig`.
    learns: whether updates are made.
    uniform: whether devices are drawn uniformly in the same process, to compare with.
    weights: of the network, in its order, to begin with; None initializes them.
    compiled: see `PlacetoLearner`.

  Raises:
    PlacetoError: the start is not a placement of the problem, or the weights are of another
      network.
  """
  config = config or PlacetoConfig()
  began = problem.account.evaluations, problem.account.seconds
  summary = _Summary(root_dir)
  grouping, allowed, placement = _starting_level(problem, np.asarray(start))
  seeds = np.random.SeedSequence(seed).spawn(len(config.levels))
  search: Optional[_Level] = None
  for i, (factor, share) in enumerate(config.levels):
    part = budget.share(problem.account, share / sum(later for _, later in config.levels[i:]))
    if search is not None:
      if not search.affordable(budget):
        break
      grouping, allowed, placement = _refine(
          problem, search.op_placement, int(problem.num_groups * factor))
      weights = search.weights
    search = _Level(
        problem, grouping, allowed, placement, part, seeds[i], config, weights, learns=learns,
        uniform=uniform, compiled=compiled)
    search.run(lambda: spent_share(problem, budget, began), summary)
  summary.close()


def _starting_level(
    problem: PlacementProblem, start: np.ndarray) -> Tuple[Grouping, np.ndarray, np.ndarray]:
  """Groups, where they may go, and where the start has them."""
  if start.shape != (problem.graph.num_ops,):
    return problem.grouping, problem.allowed, start
  return _refine(problem, start, problem.num_groups)


def _refine(
    problem: PlacementProblem, placement: np.ndarray, count: int
) -> Tuple[Grouping, np.ndarray, np.ndarray]:
  """About `count` groups that a placement [N] has on one device each, and where it has them."""
  units = placed_units(problem, placement, count)
  grouping = number_groups(units.unit_of_op, topological_rank(problem.graph))
  first = np.unique(grouping.group_of_op, return_index=True)[1]
  return grouping, units.allowed[units.unit_of_op[first]], placement[first]


class _Level:
  """A search on one grouping: the environment, and what plays and learns in it."""

  def __init__(
      self, problem: PlacementProblem, grouping: Grouping, allowed: np.ndarray, start: np.ndarray,
      budget: Budget, seed: np.random.SeedSequence, config: PlacetoConfig,
      weights: Optional[Sequence[np.ndarray]], *, learns: bool, uniform: bool, compiled: bool):
    remaining = problem.account.remaining_evaluations(budget)
    self._learns = learns = learns and not uniform
    rules = dataclasses.replace(
        config.environment, all_gains=learns and config.credit == "gains")
    # Simulations of a step, of each episode; gains are simulated for the first one, too.
    self._each = 2 * problem.num_devices if rules.all_gains else 1
    if remaining is not None:  # one evaluation goes to the start
      rules = dataclasses.replace(
          rules, num_episodes=max(1, min(rules.num_episodes, (remaining - 1) // self._each)))
    grouped = GroupedGraph.build(problem.graph, problem.costs, problem.cluster, grouping, allowed)
    seeds = seed.generate_state(3)
    self._problem, self._budget, self._grouping = problem, budget, grouping
    self._single = PlacementEnvironment(
        allowed, SimulatedCost(problem, grouped, grouping), start, order=grouped.order,
        config=rules, seed=int(seeds[0]))
    self.environment = FamilyEnvironment([self._single], go_on=lambda: self.affordable(budget))
    self._rng = np.random.default_rng(seeds[1])
    self._learner = None if uniform else PlacetoLearner(
        self.environment, [grouped], config, int(seeds[2]), weights=weights, compiled=compiled)
    self._logits: driving.Logits = (
        functools.partial(_uniform, np.where(allowed, 0.0, -np.inf)) if self._learner is None
        else self._learner.logits)

  @property
  def op_placement(self) -> np.ndarray:
    """[N] int32: the best placement met."""
    return self._grouping.expand(self._single.best_placement)

  @property
  def weights(self) -> Optional[List[np.ndarray]]:
    """Of the network; None without one."""
    return None if self._learner is None else self._learner.weights

  def affordable(self, budget: Budget) -> bool:
    """Whether the budget suffices for a step in which every episode is evaluated."""
    left = self._problem.account.remaining_evaluations(budget)
    return not self._problem.account.exhausted(budget) and (
        left is None or left >= self.environment.batch_size * self._each)

  def run(self, spent: Callable[[], float], summary: _Summary) -> None:
    """Plays episodes, and learns from them, until the budget is used up."""
    problem, learner, idle = self._problem, self._learner, 0
    while self.affordable(self._budget) and idle < _IDLE_EPISODES:
      evaluations = problem.account.evaluations
      steps, losses = play(self.environment, self._logits, self._rng).steps, {}
      if learner is not None and self._learns:
        losses = attempt(
            functools.partial(learner.update, steps, spent=spent()), learner.variables)
      # With a budget of evaluations only, a policy that moves nothing would never end.
      idle = idle + 1 if problem.account.evaluations == evaluations else 0
      summary.write(
          problem, self._single, float(steps.reward.sum(axis=1).mean()), losses)


def _uniform(logits: np.ndarray, observation: Dict[str, np.ndarray]) -> np.ndarray:
  """[B, K, D] of a policy that draws every allowed device with equal probability, by [G, D]."""
  return logits[observation[observation_lib.CURRENT]]


class _Summary:
  """TensorBoard events, one row per episode; the step is the number of evaluations.

  Rows are held back until there are enough for a chart. On a large graph there is time for few
  episodes, which would show as two points.
  """

  def __init__(self, root_dir: Optional[str]):
    self._writer = (
        None if root_dir is None
        else tf.summary.create_file_writer(os.path.join(root_dir, "train")))
    self._held: List[Tuple[int, Dict[str, float]]] = []  # (evaluations, scalars)
    self._shown = False

  def write(
      self, problem: PlacementProblem, environment: PlacementEnvironment, returns: float,
      losses: Dict[str, float]) -> None:
    if self._writer is None:
      return
    scalars = {
        "StepTime/best_ms": problem.account.best_objective_us / 1e3,
        "StepTime/current_ms": float(environment.objective_us.mean()) / 1e3,
        "Training/AverageReturn": returns,
    }
    scalars.update({f"Training/{name}": value for name, value in losses.items()})
    self._held.append((problem.account.evaluations, scalars))
    self._shown |= len(self._held) >= _MIN_ROWS
    if self._shown:
      with self._writer.as_default():
        for evaluations, row in self._held:
          for name, value in row.items():
            tf.summary.scalar(name, value, step=evaluations)
      self._held.clear()

  def close(self) -> None:
    if self._writer is not None:
      self._writer.close()
