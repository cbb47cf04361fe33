import collections
import types

import numpy as np
import tensorflow as tf

from placeto_tf.policies.placeto import learner as placeto_learner


def test_a_baseline_is_the_mean_return_of_a_graphs_last_updates_at_each_step():
  learner = placeto_learner.PlacetoLearner.__new__(placeto_learner.PlacetoLearner)
  learner._returns = [[collections.deque(maxlen=2) for _ in range(3)] for _ in range(2)]
  learner._baseline = types.SimpleNamespace(table=tf.Variable(np.zeros((2, 3), np.float32)))
  rewards = np.array([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]], np.float32)  # two episodes of graph 1
  for scale in (100.0, 1.0, 3.0):  # the first one is forgotten
    learner._lay_baselines(scale * rewards, [1])
  np.testing.assert_allclose(learner._baseline.table, [[0, 0, 0], [6, 2, 2]])


def test_ranks_do_not_let_one_bad_move_drown_the_rest_and_leave_what_moved_nothing_at_zero():
  values = np.array([0.0, -1e6, 0.5, 0.0, 0.1, -0.2])
  ranks = placeto_learner._ranks(values, values != 0)
  np.testing.assert_allclose(ranks, [0, -1, 1, 0, 1 / 3, -1 / 3], atol=1e-6)
  values = np.array([-0.1, -0.1, -0.1, 7.0, 0.0])
  ranks = placeto_learner._ranks(values, values != 0)
  np.testing.assert_allclose(ranks, [-1 / 3, -1 / 3, -1 / 3, 1, 0], atol=1e-6)
  assert placeto_learner._ranks(np.array([0.0, 3.0]), np.array([False, True])).tolist() == [0, 0]
