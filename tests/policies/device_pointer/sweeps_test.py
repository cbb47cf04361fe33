import numpy as np
import pytest

from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.errors import PlacementError
from placeto_tf.methods.device_pointer.placers import improve
from placeto_tf.policies.device_pointer.scorer import ScorerWeights
from placeto_tf.policies.device_pointer.sweeps import SweepConfig, Sweeper
from placeto_tf.problem.budget import Budget
from random_problem import random_problem


def greedy_balancer():
  """Weights by hand: the less loaded a device is, the better; ties stay."""
  hidden_1 = np.zeros((len(NAMES), 32))
  hidden_1[NAMES.index("load_excess"), 0] = -1
  hidden_1[NAMES.index("stays"), 0] = 1e-4
  hidden_2, output = np.zeros((32, 32)), np.zeros(32)
  hidden_2[0, 0] = output[0] = 1
  bias_1 = np.zeros(32)
  bias_1[0] = 2
  return ScorerWeights(hidden_1, bias_1, hidden_2, np.zeros(32), output)


def start_of(problem):
  return np.zeros(problem.graph.num_ops, np.int32)


def test_a_sweep_balances_load_and_counts_every_simulation():
  problem = random_problem(num_ops=200, num_groups=24)
  sweeper = Sweeper(problem, start_of(problem), greedy_balancer(), config=SweepConfig(block=4))
  assert problem.evaluations == 1
  sweeper.regroup(24)
  before = sweeper.objective_us
  gained = sweeper.sweep(Budget(), greedy=True)
  assert gained > 0.2 * before
  assert sweeper.objective_us == pytest.approx(before - gained)
  assert 2 <= problem.evaluations <= 1 + 24
  assert problem.evaluate_ops(sweeper.placement).objective_us[0] == sweeper.objective_us


def test_a_thorough_sweep_proposes_another_device_for_each_group_by_itself():
  problem = random_problem(num_ops=200, num_groups=24)
  weights = ScorerWeights.untrained()
  alike = ScorerWeights(*weights.arrays[:4], np.zeros(32))  # never asks for a move by itself
  sweeper = Sweeper(problem, start_of(problem), alike)
  sweeper.regroup(24)
  assert sweeper.sweep(Budget(), greedy=True) == 0 and problem.evaluations == 1
  gained = sweeper.sweep(Budget(), greedy=False, thorough=True)
  assert problem.evaluations == 1 + int((sweeper.level.allowed.sum(axis=1) > 1).sum())
  assert gained > 0


def test_a_thorough_sweep_leaves_groups_where_the_scorer_is_sure():
  problem = random_problem(num_ops=200, num_groups=24)
  hidden_1, output = np.zeros((len(NAMES), 32)), np.zeros(32)
  hidden_1[NAMES.index("stays"), 0] = output[0] = 1
  hidden_2 = np.eye(32)
  stay = ScorerWeights(hidden_1, np.zeros(32), hidden_2, np.zeros(32), 8 * output)
  sweeper = Sweeper(problem, start_of(problem), stay, config=SweepConfig(sure=2.0))
  sweeper.regroup(24)
  sweeper.sweep(Budget(), greedy=False, thorough=True)
  assert problem.evaluations == 1


def test_worse_blocks_are_undone():
  problem = random_problem(num_ops=200, num_groups=24)
  # From the best placement known, whatever untrained weights propose can only be kept if no worse.
  best = improve(problem, start_of(problem), greedy_balancer(), Budget(max_evaluations=200))
  for seed in range(3):
    sweeper = Sweeper(
        problem, best, ScorerWeights.untrained(seed), config=SweepConfig(block=2))
    start_us = sweeper.objective_us
    for _ in range(3):
      sweeper.sweep(Budget(), greedy=False)
      assert sweeper.objective_us <= start_us
      np.testing.assert_array_equal(
          problem.evaluate_ops(sweeper.placement).objective_us, sweeper.objective_us)


@pytest.mark.parametrize("evaluations", [2, 7, 40, 150])
def test_the_budget_is_kept_and_the_result_never_worse_than_the_start(evaluations):
  problem = random_problem(num_ops=200, num_groups=24)
  start_us = problem.evaluate_ops(start_of(problem)).objective_us[0]
  found = improve(
      problem, start_of(problem), ScorerWeights.untrained(), Budget(max_evaluations=evaluations))
  assert problem.evaluations <= evaluations
  assert problem.evaluate_ops(found).objective_us[0] <= start_us


def test_equal_seeds_give_equal_placements_and_others_other_draws():
  def run(seed):
    problem = random_problem(num_ops=200, num_groups=24, devices="p100:2+k80:2")
    found = improve(
        problem, start_of(problem), ScorerWeights.untrained(), Budget(max_evaluations=60), seed,
        config=SweepConfig(anneal=False, greedy=0))
    return found, [row[2] for row in problem.history]

  np.testing.assert_array_equal(run(1)[0], run(1)[0])
  assert run(1)[1] == run(1)[1] != run(2)[1]


def test_finer_levels_keep_what_was_found():
  problem = random_problem(num_ops=200, num_groups=12)
  found = improve(
      problem, start_of(problem), greedy_balancer(), Budget(max_evaluations=300),
      config=SweepConfig(anneal=False, thorough=0, levels=(1.0, 4.0)))
  coarse = random_problem(num_ops=200, num_groups=12)
  other = improve(
      coarse, start_of(coarse), greedy_balancer(), Budget(max_evaluations=300),
      config=SweepConfig(anneal=False, thorough=0, levels=(1.0,)))
  assert problem.evaluate_ops(found).objective_us[0] < coarse.evaluate_ops(other).objective_us[0]


def test_new_groups_begin_where_the_old_ones_ended_and_need_no_simulation():
  problem = random_problem(num_ops=200, num_groups=24)
  sweeper = Sweeper(problem, start_of(problem), greedy_balancer())
  sweeper.sweep(Budget(), greedy=True)
  before, evaluations = sweeper.placement.copy(), problem.evaluations
  for count in (4, 12, 96):
    sweeper.regroup(count)
    np.testing.assert_array_equal(sweeper.placement, before)
    assert problem.evaluations == evaluations
  sweeper.sweep(Budget(), greedy=True)
  assert problem.evaluate_ops(sweeper.placement).objective_us[0] == sweeper.objective_us


def test_a_run_of_one_round_sweeps_each_level_once():
  counts = []

  class Recording(Sweeper):
    def sweep(self, budget, greedy, thorough=False):
      counts.append((len(np.unique(self.groups)), self.level.num_groups, (greedy, thorough)))
      return super().sweep(budget, greedy, thorough)

  problem = random_problem(num_ops=200, num_groups=24)
  Recording(problem, start_of(problem), greedy_balancer(), config=SweepConfig(
      levels=(0.25, 1.0, 2.0), thorough_levels=(0.5, 1.0), rounds=3)).run(Budget())
  assert [kind for _, _, kind in counts] == (
      [(True, False)] * 3 + [(False, True)] * 2 + [(False, False)] * 3)
  assert counts[0][1] < counts[1][1] < counts[2][1]


def test_where_nothing_can_move_the_start_comes_back():
  problem = random_problem(devices="k80:1")
  found = improve(problem, start_of(problem), ScorerWeights.untrained(), Budget(max_evaluations=50))
  np.testing.assert_array_equal(found, start_of(problem))


@pytest.mark.parametrize("wrong", [
    {"block": 0}, {"temperature": 0.0}, {"levels": ()}, {"levels": (1.0, 0.0)}, {"rounds": 0}])
def test_wrong_settings_are_refused(wrong):
  with pytest.raises(PlacementError, match=next(iter(wrong))):
    SweepConfig(**wrong)
