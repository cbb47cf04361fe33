import numpy as np
import pytest

from placeto_tf.problem.budget import Budget
from placeto_tf.training.updates import spent_share
from random_problem import random_problem


def test_the_share_counts_from_when_the_search_began_and_the_tighter_limit_decides():
  problem = random_problem()
  problem.evaluate(np.tile(problem.allowed.argmax(axis=1), (30, 1)).astype(np.int32))
  assert spent_share(problem, Budget(max_evaluations=50), (10, 0.0)) == pytest.approx(0.5)
  assert spent_share(problem, Budget(max_evaluations=20), (10, 0.0)) == 1.0
  assert spent_share(problem, Budget(max_seconds=1e9, max_evaluations=50), (10, 0.0)) == 0.5
  assert spent_share(problem, Budget(max_seconds=1e-6), (30, 0.0)) == 1.0


def test_at_most_is_a_limit_of_its_own():
  problem = random_problem()
  problem.evaluate(np.tile(problem.allowed.argmax(axis=1), (20, 1)).astype(np.int32))
  assert Budget(51, 9.0, 5.0).at_most(problem.search_log, 7) == Budget(27, 9.0, 5.0)
  assert Budget(22).at_most(problem.search_log, 7) == Budget(22)
  assert Budget(max_seconds=9.0).at_most(problem.search_log, 7) == Budget(27, 9.0)
