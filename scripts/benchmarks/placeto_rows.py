"""Compares a policy of the published process with random placements and placers without learning.

The rows of `rows` are step times divided by the best of one device, expert and METIS:

  greedy (random start)   the last placement of one episode of likeliest devices, from a random
                          placement, the mean of eight; its evaluations are those of the row
  greedy (known start)    the same from the best of single, expert and METIS
  uniform placements      the best of as many uniformly random placements as the greedy episode
                          from a random start evaluates
  zero-shot,              the best in a number of evaluations by episodes from the best placement so
  uniform moves           far: of the trained policy, of uniform devices
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

_GREEDY_STARTS = 8  # random placements of each graph from which a greedy episode starts
_MOST_EPISODES = 4  # for each episode that fits the budget if every decision moves a group


def rows(
    graphs: Sequence[Callable[[], Any]], weights: Any, budgets: Sequence[int], seed: int, *,
    rivals: bool = True) -> Dict[str, List[Tuple[float, float]]]:
  """Returns row -> for each graph (step time divided by the best known placer's, evaluations).

  Args:
    graphs: functions without arguments, each of which makes a new `PlacementProblem` of a graph.
    weights: `PublishedWeights` of a training run.
    budgets: evaluations of the searches.
    seed: of samples.
    rivals: whether to add methods without learning, and greedy episodes from random starts.
  """
  from placeto_tf.environments.problems import with_starts

  first = [make() for make in graphs]
  known = [with_starts(problem).starts[0] for problem in first]
  best_us = [float(p.evaluate(start[None]).objective_us[0]) for p, start in zip(first, known)]
  found: Dict[str, List[Tuple[float, float]]] = {}
  rng = np.random.default_rng(seed)
  greedy = [("greedy (known start)", "given", 1)]
  if rivals:
    greedy.append(("greedy (random start)", "random", _GREEDY_STARTS))
  for row, start, episodes in greedy:
    session = _Session(
        graphs, known, weights, weights.arrays, seed, start=start, episodes=episodes)
    session.episode(None)
    counts = [max(1, round(count / episodes)) for count in session.evaluations()]
    found[row] = list(zip((session.last_us() / best_us).tolist(), counts))
    if start == "random":
      found["uniform placements"] = [
          (_best_of_samples(p, rng, count) / us, count)
          for p, us, count in zip(first, best_us, counts)]
  searches = [("zero-shot", weights.arrays, False)]
  if rivals:
    searches.append(("uniform moves", None, True))
  for row, arrays, uniform in searches:
    session = _Session(graphs, known, weights, arrays, seed, start="best", uniform=uniform)
    for _ in range(_MOST_EPISODES * -(-max(budgets) // session.steps)):
      session.episode(rng)
      if min(session.evaluations()) >= max(budgets):
        break
    for budget in budgets:
      found[f"{row}, {budget}"] = [
          (best / us, min(budget, count)) for best, us, count in zip(
              session.best_us(budget), best_us, session.evaluations())]
  return found


class _Session:
  """One policy on all graphs, with one episode of each graph at a time."""

  def __init__(
      self, graphs, starts, weights, arrays, seed, *, start, episodes=1, uniform=False):
    from placeto_tf.encoding.grouped_graph import GroupedGraph
    from placeto_tf.environments.visit_environment import VisitEnvironment
    from placeto_tf.policies.placeto.published.learner import PublishedLearner

    self._problems = [make() for make in graphs]
    grouped = [GroupedGraph.of(each) for each in self._problems]
    rules = dataclasses.replace(weights.config.environment, start=start, num_episodes=episodes)
    self.steps = max(p.num_groups for p in self._problems)
    self._environments = [
        VisitEnvironment(
            p, g, given, config=rules, seed=seed, graph=i, num_graphs=len(graphs),
            max_groups=self.steps)
        for i, (p, g, given) in enumerate(zip(self._problems, grouped, starts))]
    self._learner = None if uniform else PublishedLearner(
        self._environments[0], grouped, dataclasses.replace(weights.config, environment=rules),
        seed, weights=arrays)

  def episode(self, rng: Optional[np.random.Generator]) -> None:
    """Plays an episode; without a generator with the likeliest devices."""
    from placeto_tf.environments import driving

    for problem, environment in zip(self._problems, self._environments):
      logits = self._learner.logits if self._learner else functools.partial(_uniform, problem)
      driving.play(environment, driving.drawing(logits, rng))

  def last_us(self) -> np.ndarray:
    """Returns [C] the present step times; for several episodes the geometric mean."""
    return np.array([
        np.exp(np.log(each.objective_us).mean()) for each in self._environments])

  def evaluations(self) -> List[int]:
    """Returns [C] the evaluations so far."""
    return [problem.search_log.evaluations for problem in self._problems]

  def best_us(self, budget: int) -> List[float]:
    """Returns [C] the best step times within a number of evaluations."""
    return [
        min(us for evaluations, _, us in problem.search_log.history if evaluations <= budget)
        for problem in self._problems]


def _uniform(problem, observation) -> np.ndarray:
  """Returns logits [B, 1, D] of a policy that samples allowed devices with equal probability."""
  return np.where(problem.allowed[observation["current"]], 0.0, -np.inf)


def _best_of_samples(problem, rng: np.random.Generator, count: int) -> float:
  """Returns the best of `count` uniformly random placements, as geometric mean over trials."""
  trials = [
      problem.evaluate(_random(problem, rng, count)).objective_us.min()
      for _ in range(_GREEDY_STARTS)]
  return float(np.exp(np.log(trials).mean()))


def _random(problem, rng: np.random.Generator, count: int) -> np.ndarray:
  """Samples [count, G] uniformly random allowed devices."""
  scores = np.where(problem.allowed, rng.random((count,) + problem.allowed.shape), -1.0)
  return scores.argmax(axis=2).astype(np.int32)
