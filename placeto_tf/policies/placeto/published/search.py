"""The published process as methods: trains on one graph and, by doing so, improves its placement.

The result is the best placement of all episodes, which the problem remembers; the trained policy is
dropped. The graph is a family of one graph: episodes and updates are those of training.

Dimensions: B episodes side by side, N ops, G groups, D devices.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Optional, Sequence

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments import driving
from placeto_tf.environments.visit_environment import CURRENT, VisitEnvironment
from placeto_tf.policies.placeto.published.collecting import play
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.learner import PublishedLearner
from placeto_tf.policies.placeto.published.weights import PublishedWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.updates import attempt, spent_share

_IDLE_EPISODES = 20  # a search ends after so many episodes in a row without an evaluation


def place(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, way: str = "fine_tune",
    weights: Optional[str] = None) -> np.ndarray:
  """Improves the problem's best placement by episodes of the published process.

  Args:
    problem: its groups are placed; their number should be about that of training.
    budget, seed: see `improve`.
    way: "fine_tune" learns on the problem, "zero_shot" learns nothing, and "random" samples devices
      uniformly, for comparison.
    weights: directory of a training run (see `PublishedWeights.load`), for the configuration and
      the initial weights. None takes `PublishedConfig` and random initial weights.

  Returns:
    [N] the problem's best placement.

  Raises:
    PlacetoError: the weights are missing, or are for another number of devices.
  """
  config, arrays = PublishedConfig(), None
  if weights is not None:
    trained = PublishedWeights.load(weights)
    trained.check(problem.num_devices)
    config = trained.config
    if way == "fine_tune":  # with as much exploration as at the end of training
      config = dataclasses.replace(config, entropy=config.final_entropy)
    if way != "random":
      arrays = trained.arrays
  # A search continues from the best placement, even if episodes of training began elsewhere.
  config = dataclasses.replace(
      config, environment=dataclasses.replace(config.environment, start="best"))
  improve(
      problem, problem.project(problem.search_log.best_known), budget, seed, config=config,
      learns=way == "fine_tune", uniform=way == "random", weights=arrays)
  return problem.search_log.best_known


def improve(
    problem: PlacementProblem,
    start: np.ndarray,
    budget: Budget,
    seed: int = 0,
    *,
    config: Optional[PublishedConfig] = None,
    learns: bool = True,
    uniform: bool = False,
    weights: Optional[Sequence[np.ndarray]] = None,
) -> None:
  """Trains on the problem's graph for the budget, starting from a placement.

  If only `max_evaluations` is limited, the same seed gives the same result on one machine, bit for
  bit. The search stops before a step whose evaluations could exceed the budget.

  Args:
    problem: counts the evaluations and remembers the best placement.
    start: [G] int32.
    budget: counted from the making of the problem.
    seed: of weights, actions and orders.
    config: see `PublishedConfig`.
    learns: whether updates are made.
    uniform: whether devices are sampled uniformly in the same process, for comparison.
    weights: initial weights in the network's order; None samples them.

  Raises:
    PlacetoError: the start is not a placement of the problem, or the weights are of another
      network.
  """
  config = config or PublishedConfig()
  search_log = problem.search_log
  began = search_log.evaluations, search_log.seconds
  seeds = np.random.SeedSequence(seed).generate_state(3)  # of orders, of actions, of weights
  remaining, rules = search_log.remaining_evaluations(budget), config.environment
  if remaining is not None:  # one evaluation goes to the start
    rules = dataclasses.replace(
        rules, num_episodes=max(1, min(rules.num_episodes, remaining - 1)))
  # One graph, alone in its family: same process, same learner as in training.
  grouped = GroupedGraph.of(problem)

  def affordable() -> bool:  # a step in which every episode is evaluated
    """Returns whether the budget allows a step in which every episode is evaluated."""
    left = search_log.remaining_evaluations(budget)
    return not search_log.exhausted(budget) and (left is None or left >= rules.num_episodes)

  environment = VisitEnvironment(
      problem, grouped, start, config=rules, seed=int(seeds[0]), go_on=affordable)
  rng = np.random.default_rng(seeds[1])
  learner = None if uniform else PublishedLearner(
      environment, [grouped], config, int(seeds[2]), weights=weights)
  # [G, D] equal logits, -inf where a group may not go; looked up, [B, K, D].
  equal = np.where(problem.allowed, 0.0, -np.inf)
  logits: driving.Logits = (lambda observation: equal[observation[CURRENT]]) if (
      learner is None) else learner.logits
  idle = 0
  # Play and learn, until the budget is used up or the policy moves no group any more.
  while affordable() and idle < _IDLE_EPISODES:
    evaluations = search_log.evaluations
    steps = play(environment, logits, rng).steps
    if learner is not None and learns:
      attempt(
          functools.partial(learner.update, [steps], spent=spent_share(problem, budget, began)),
          learner.variables)
    # With a budget of evaluations only, a search whose policy moves nothing would never end.
    idle = idle + 1 if search_log.evaluations == evaluations else 0
