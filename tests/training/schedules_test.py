import numpy as np
import pytest

from placeto_tf.problem.budget import Budget
from placeto_tf.training.schedules import between, spent_share
from random_problem import random_problem


def test_the_share_counts_from_when_the_search_began_and_the_tighter_limit_decides():
  problem = random_problem()
  problem.evaluate(np.tile(problem.allowed.argmax(axis=1), (30, 1)).astype(np.int32))
  assert spent_share(problem, Budget(max_evaluations=50), (10, 0.0)) == pytest.approx(0.5)
  assert spent_share(problem, Budget(max_evaluations=20), (10, 0.0)) == 1.0
  assert spent_share(problem, Budget(max_seconds=1e9, max_evaluations=50), (10, 0.0)) == 0.5
  assert spent_share(problem, Budget(max_seconds=1e-6), (30, 0.0)) == 1.0


def test_between_is_a_straight_line():
  assert [between(1.0, 3.0, share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]


def test_a_share_of_a_budget_is_a_share_of_what_is_left():
  problem = random_problem()
  problem.evaluate(np.tile(problem.allowed.argmax(axis=1), (20, 1)).astype(np.int32))
  half = Budget(max_evaluations=51, max_seconds=1e6).share(problem.search_log, 0.5)
  assert half.max_evaluations == 20 + 16 and half.max_seconds == pytest.approx(5e5, rel=1e-3)
  assert Budget(max_seconds=1e6).share(problem.search_log, 0.5).max_evaluations is None


def test_at_most_is_a_limit_of_its_own():
  problem = random_problem()
  problem.evaluate(np.tile(problem.allowed.argmax(axis=1), (20, 1)).astype(np.int32))
  assert Budget(51, 9.0, 5.0).at_most(problem.search_log, 7) == Budget(27, 9.0, 5.0)
  assert Budget(22).at_most(problem.search_log, 7) == Budget(22)
  assert Budget(max_seconds=9.0).at_most(problem.search_log, 7) == Budget(27, 9.0)
