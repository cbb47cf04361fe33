import numpy as np

from placeto_tf.encoding import structure


def edges(*pairs):
  return np.array(pairs, dtype=np.int32).reshape(-1, 2).T


def test_paths_of_any_length_are_followed_and_a_group_on_a_cycle_reaches_itself():
  reach = structure.reachable(5, *edges((0, 1), (1, 2), (2, 3), (3, 1)))
  assert reach[0].tolist() == [False, True, True, True, False]
  assert reach[2, 2] and not reach[0, 0] and not reach[4].any()
