import collections
import types

import numpy as np
import tensorflow as tf

from placeto_tf.policies.placeto.published import learner as published_learner


def test_a_baseline_is_the_mean_return_of_a_graphs_last_updates_at_each_step():
  learner = published_learner.PublishedLearner.__new__(published_learner.PublishedLearner)
  learner._returns = [[collections.deque(maxlen=2) for _ in range(3)] for _ in range(2)]
  learner._baseline = types.SimpleNamespace(table=tf.Variable(np.zeros((2, 3), np.float32)))
  rewards = np.array([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]], np.float32)  # two episodes of graph 1
  for scale in (100.0, 1.0, 3.0):  # the first one is forgotten
    learner._lay_baseline(scale * rewards, 1)
  np.testing.assert_allclose(learner._baseline.table, [[0, 0, 0], [6, 2, 2]])
