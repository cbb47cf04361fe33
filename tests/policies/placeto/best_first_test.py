import math

import numpy as np
import pytest

from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.policies.placeto import best_first, placers
from placeto_tf.policies.placeto.best_first import BestFirst, BestFirstConfig
from placeto_tf.policies.placeto.placers import search
from placeto_tf.policies.placeto.scorer import ScorerWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.training import made_problems
from random_problem import random_problem


def balancer():
  """Weights by hand: the less loaded a device is, the more a group gains by going there."""
  hidden_1, bias_1 = np.zeros((len(NAMES), 32)), np.zeros(32)
  hidden_1[NAMES.index("load_excess"), 0], bias_1[0] = -1, 2
  hidden_2, output = np.zeros((32, 32)), np.zeros(32)
  hidden_2[0, 0] = output[0] = 1
  return ScorerWeights(hidden_1, bias_1, hidden_2, np.zeros(32), output)


def start_of(problem):
  return np.zeros(problem.graph.num_ops, np.int32)


class PlainBestFirst(BestFirst):
  """A level search in plain Python, with what compiled loops must agree."""

  def level_search(self, budget, temperature=0.0):
    self.several_moves(budget)
    problem, movable = self.problem, self.tables.movable
    failures = np.zeros(self.tables.allowed.shape, np.float32)
    untried = self.tables.allowed.copy()
    while not problem.search_log.exhausted(budget):
      some = movable[untried[movable].any(axis=1)]
      if len(some) == 0:
        return
      if len(some) > best_first.MOST_GROUPS:
        some = self._rng.choice(some, best_first.MOST_GROUPS, replace=False)
      scores = self.scores(some) - self._config.forget * failures[some]
      untried[some, self.groups[some]] = False
      scores[~untried[some]] = -np.inf
      while np.isfinite(scores).any() and not problem.search_log.exhausted(budget):
        sampled = scores
        if temperature > 0:
          sampled = scores + (temperature * self._rng.gumbel(size=scores.shape)).astype(np.float32)
        i, device = divmod(int(sampled.argmax()), scores.shape[1])
        group, before_us = some[i], self.objective_us
        scores[i, device], untried[group, device] = -np.inf, False
        failures[group, device] += 1
        groups = self.groups[None].copy()
        groups[0, group] = device
        placements, evaluation = self.simulate(groups)
        if evaluation.objective_us[0] <= before_us:
          self.keep(groups, placements, evaluation)
          failures[group] += 1
          if self.objective_us < before_us:
            untried[:] = self.tables.allowed
          break


@pytest.mark.parametrize("seed", range(6))
def test_compiled_moves_are_those_of_plain_python(seed, monkeypatch):
  found = []
  monkeypatch.setattr(best_first, "LONG_EVALUATIONS", 300)
  monkeypatch.setattr(best_first, "MOST_GROUPS", 16 if seed % 2 else 256)
  for kind in (BestFirst, PlainBestFirst):
    problem = random_problem(num_ops=200, num_groups=24, devices=f"k80:{2 + seed % 3}", seed=seed)
    config = BestFirstConfig(rounds=(20, 30))
    run = kind(problem, start_of(problem), balancer(), config=config, seed=seed)
    run.run(Budget(max_evaluations=320))
    found.append((run.placement.tolist(), [each[::2] for each in problem.search_log.history],
                  problem.search_log.evaluations, run._rng.bit_generator.state))
  assert found[0] == found[1]


def on_a_level(problem, groups, weights=None, **config):
  found = BestFirst(problem, start_of(problem), weights or balancer(), config=BestFirstConfig(
      **{"several": 0, **config}))
  found.regroup(groups)
  return found


def test_a_level_ends_where_no_move_makes_the_placement_better():
  problem = random_problem(num_ops=200, num_groups=12)
  run = on_a_level(problem, 12)
  run.level_search(Budget())
  groups, allowed = run.groups, run.tables.allowed
  for group in run.tables.movable:
    for device in np.flatnonzero(allowed[group]):
      if device != groups[group]:
        moved = groups.copy()
        moved[group] = device
        assert problem.evaluate_ops(
            run.level.grouping.expand(moved)).objective_us[0] >= run.objective_us


@pytest.mark.parametrize("evaluations", [2, 40, 400])
def test_the_budget_is_kept_and_the_result_never_worse_than_the_start(evaluations):
  problem = random_problem(num_ops=200, num_groups=24)
  start_us = problem.evaluate_ops(start_of(problem)).objective_us[0]
  found = search(
      problem, start_of(problem), ScorerWeights.untrained(), Budget(max_evaluations=evaluations))
  assert problem.search_log.evaluations <= evaluations
  assert problem.evaluate_ops(found).objective_us[0] <= start_us


@pytest.mark.parametrize("evaluations, plenty", [(3000, False), (7000, True)])
def test_where_there_is_plenty_it_anneals_from_the_start_and_goes_on_from_the_better(
    monkeypatch, evaluations, plenty):
  problem, begun, rounds = random_problem(), [], []
  start = problem.allowed_ops.argmax(axis=1).astype(np.int32)

  def anneal(problem, budget, seed, start=None, runs=None):
    begun.append((problem.search_log.evaluations, budget.max_evaluations, start))
    return problem.search_log.best_known

  class Rounds(BestFirst):
    def long_round(self, budget):
      rounds.append((problem.search_log.evaluations, budget.max_evaluations, self.objective_us))
      super().long_round(budget)

  monkeypatch.setattr(placers, "anneal", anneal)
  monkeypatch.setattr(placers, "BestFirst", Rounds)
  search(problem, start, ScorerWeights.untrained(0), Budget(evaluations))
  used, until, where = begun[0]
  if not plenty:
    assert where is None and until == evaluations and len(rounds) == 1
    return
  (began, first_until, _), (_, last_until, last_us) = rounds
  assert first_until == began + best_first.LONG_OF_PLENTY
  assert (where == start).all() and used <= first_until
  assert until == used + math.ceil(0.5 * (evaluations - used))
  assert last_until == evaluations and last_us <= problem.evaluate_ops(start[None]).objective_us[0]


def test_without_limits_the_rounds_end(monkeypatch):
  monkeypatch.setattr(best_first, "LONG_OF_PLENTY", 20)
  problem = random_problem(num_ops=60, num_groups=6)
  config = BestFirstConfig(rounds=(5, 5))
  found = search(problem, start_of(problem), balancer(), Budget(), config=config, annealing=False)
  assert problem.search_log.evaluations <= 1 + 5 + 5 + 20
  assert problem.evaluate_ops(found).objective_us[0] == problem.search_log.best_objective_us


def test_until_a_placement_fits_moves_off_full_devices_come_first():
  problem = made_problems.make("made:pipelines[1002]")  # each accelerator holds a part of the model
  run = BestFirst(problem, start_of(problem), ScorerWeights.untrained())
  movable = run.tables.movable
  free_bytes = problem.cluster.memory_bytes - problem.evaluate_ops(
      run.placement).peak_memory_bytes[0]
  assert free_bytes[0] < 0 and (free_bytes[1:] > 0).all()
  relief = run.tables.held_bytes[movable][:, None] <= free_bytes
  relief[:, 0] = False
  scores = run.scores(movable)
  assert relief.any() and scores[relief].min() > scores[~relief].max()
