import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops
from placeto_tf.policies.baselines.hierarchical import Parts, sample
from placeto_tf.problem.placement_problem import PlacementProblem


def chain(has_kernel=None, colocation=None):
  """a -> b -> c -> d, on two GPUs and a host; outputs of 10, 20, 30 and 40 bytes."""
  fields = {}
  if has_kernel is not None:
    fields["has_kernel"] = np.array(has_kernel)
  if colocation is not None:
    fields["colocation"] = np.array(colocation, dtype=np.int32)
  graph = ComputationGraph.from_edges(
      list("abcd"), ["X", "Y", "X", "Y"], [1, 1, 1, 1], [(0, 0, 1), (1, 0, 2), (2, 0, 3)],
      **fields)
  cluster = Cluster.parse("k80:2")
  costs = OpCosts(
      np.ones((4, len(cluster.kind_devices))), np.array([10.0, 20.0, 30.0, 40.0]), np.zeros(4),
      np.zeros(4))
  allowed = np.ones((4, cluster.num_devices), dtype=bool)
  allowed[:, 2] = False
  if has_kernel is not None:  # what has no kernel on a GPU stays on the host
    allowed[~graph.has_kernel[:, 1]] = [False, False, True]
  grouping = group_ops(graph, costs, allowed, method="none")
  return PlacementProblem(graph, costs, cluster, grouping, allowed_ops=allowed)


def test_group_embeddings_by_hand():
  parts = Parts(chain())
  features, allowed = parts.group_inputs(np.array([[0, 0, 2, 0], [1, 1, 1, 1]], dtype=np.int32), 3)
  # Of the first: group 0 has X, Y, Y and 70 bytes, feeds 2 and reads from it; group 2 has X.
  # No shapes are known.
  expected = np.zeros((3, 2 + 2 + 5 + 6))
  once = np.log(2)
  expected[0] = [once, np.log(3), np.log(71) / 20, 1, *5 * [0], 0, 0, once, 0, 0, once]
  expected[2] = [once, 0, np.log(31) / 20, 1, *5 * [0], once, 0, 0, once, 0, 0]
  np.testing.assert_allclose(features[0], expected, rtol=1e-6)
  assert allowed[0].tolist() == [[True, True, False], [True, False, False],
                                        [True, True, False]]
  np.testing.assert_allclose(
      features[1, 1], [np.log(3), np.log(3), np.log(101) / 20, 1] + 11 * [0], rtol=1e-6)
  assert (features[1, [0, 2]] == 0).all()


def test_a_unit_with_one_device_to_go_to_is_in_no_group_and_goes_there():
  parts = Parts(chain(has_kernel=[[True, True], [True, False], [True, True], [True, True]]))
  assert parts.movable.tolist() == [True, False, True, True]
  groups = np.array([[0, 1, 0, 2]], dtype=np.int32)
  features, allowed = parts.group_inputs(groups, 3)
  assert (features[0, 1] == 0).all()  # what is alone in group 1 is not in it
  assert allowed[0].tolist() == [[True, True, False], [True, False, False],
                                        [True, True, False]]
  assert parts.placements(groups, np.array([[1, 0, 0]], dtype=np.int32)).tolist() == [[1, 2, 1, 0]]


def test_ops_that_must_share_a_device_are_one_unit():
  problem = chain(colocation=[0, 1, 0, 3])
  parts = Parts(problem)
  assert len(parts.movable) == 3
  placed = parts.placements(np.array([[0, 1, 2]], np.int32), np.array([[0, 1, 1]], np.int32))
  of_ops = problem.grouping.expand(placed)[0]
  assert of_ops[0] == of_ops[2]


def test_samples_follow_the_table():
  table = np.log(np.array([[0.5, 0.25, 0.25], [1e-30, 1.0, 1e-30], [0.1, 0.1, 0.8]]))
  columns = sample(np.random.default_rng(0), table, 20000)
  assert columns.shape == (20000, 3) and (columns[:, 1] == 1).all()
  for u, row in enumerate(np.exp(table)):
    np.testing.assert_allclose(np.bincount(columns[:, u], minlength=3) / 20000, row, atol=0.012)
