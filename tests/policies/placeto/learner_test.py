import numpy as np

from placeto_tf.policies.placeto import learner as placeto_learner


def test_ranks_do_not_let_one_bad_move_drown_the_rest_and_leave_what_moved_nothing_at_zero():
  values = np.array([0.0, -1e6, 0.5, 0.0, 0.1, -0.2])
  ranks = placeto_learner._ranks(values, values != 0)
  np.testing.assert_allclose(ranks, [0, -1, 1, 0, 1 / 3, -1 / 3], atol=1e-6)
  values = np.array([-0.1, -0.1, -0.1, 7.0, 0.0])
  ranks = placeto_learner._ranks(values, values != 0)
  np.testing.assert_allclose(ranks, [-1 / 3, -1 / 3, -1 / 3, 1, 0], atol=1e-6)
  assert placeto_learner._ranks(np.array([0.0, 3.0]), np.array([False, True])).tolist() == [0, 0]
