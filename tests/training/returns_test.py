import numpy as np

from placeto_tf.training.returns import StepBaseline, discounted_returns


def test_returns_by_hand():
  rewards = np.array([[1.0, 0.0], [2.0, 4.0], [4.0, 8.0]])
  np.testing.assert_array_equal(
      discounted_returns(rewards, 0.5), [[1 + 1 + 1, 0 + 2 + 2], [2 + 2, 4 + 4], [4, 8]])
  np.testing.assert_array_equal(discounted_returns(rewards, 0.0), rewards)
  np.testing.assert_array_equal(discounted_returns(rewards, 1.0)[0], [7, 12])


def test_the_baseline_is_the_mean_of_the_last_updates_at_each_step():
  baseline = StepBaseline(num_steps=2, updates=3)
  assert baseline(0, 2).tolist() == [[0.0], [0.0]]
  baseline.update(0, np.array([[1.0, 2.0], [10.0, 20.0]]))
  assert baseline(0, 2).tolist() == [[1.5], [15.0]]
  baseline.update(0, np.array([[3.0, 4.0]]))  # the first step of one more update
  assert baseline(0, 2).tolist() == [[2.5], [15.0]]  # an update counts once, by its mean
  for value in (5.5, 6.5):
    baseline.update(0, np.array([[value, value]]))
  assert baseline(0, 1).tolist() == [[(3.5 + 5.5 + 6.5) / 3]]  # the first has dropped out
