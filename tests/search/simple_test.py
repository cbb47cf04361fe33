import dataclasses

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.search.simple import current, random, single


def test_current_takes_the_first_device_for_one_the_cluster_lacks(make_problem):
  problem = make_problem([1.0] * 2, assigned_devices=("/GPU:7", "/GPU:1"))
  assert current(problem).tolist() == [0, 1]


def test_current_is_on_the_host_where_the_graph_is_and_counts_no_pins(make_problem, make_cluster):
  problem = make_problem(
      [[1.0, 50.0]] * 3, [(0, 1), (1, 2)], cluster=make_cluster(2, host=True),
      assigned_devices=("/CPU:0", "", "/GPU:1"))
  pinned = problem.allowed_ops.copy()
  pinned[2] = [True, False, False]
  problem = dataclasses.replace(problem, allowed_ops=pinned)
  assert current(problem).tolist() == [2, 0, 1]
  assert problem.search_log.best_known.tolist() == [2, 0, 0]


def test_colocated_ops_follow_the_one_that_has_a_device(make_problem):
  problem = make_problem(
      [1.0] * 2, assigned_devices=("", "/GPU:1"), colocation=np.array([0, 0], np.int32))
  assert current(problem).tolist() == [1, 1]


def test_single_takes_the_faster_kind(make_problem, make_cluster):
  problem = make_problem([[30.0, 10.0]] * 2, [(0, 1)], cluster=make_cluster(2, speeds=[0, 1]))
  assert single(problem).tolist() == [1, 1]
  assert problem.search_log.evaluations == 2


def test_random_uses_its_evaluations_and_every_device(make_problem):
  problem = make_problem([1.0] * 12)
  placement = random(problem, Budget(max_evaluations=100), 0)
  assert problem.search_log.evaluations == 100
  assert sorted(np.bincount(placement).tolist()) == [6, 6]  # the best of 100 is balanced
