"""What the replicas of a graph share, and what they wait for."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import training_models as models
from placeto_tf.clusters import Cluster
from placeto_tf.graphs import load_graph, traversal
from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import ReplicaSource, packing, replicate, replicated_costs
from placeto_tf.replication.replicated_graph import SHARED
from placeto_tf.search.symmetric import anneal_symmetric

REPLICAS, LAYERS = 3, 6


def training_graph(clip=None):
  """Dense layers with biases; TensorFlow 1 puts a barrier behind each layer's gradients."""
  graph = models.dense_graph(LAYERS, 8, biases=True, clip=clip)
  return load_graph(graph.as_graph_def(), fetches=["train", "loss:0"])


@pytest.fixture(scope="module", params=[None, 1.0], ids=["plain", "clipped"], name="replicated")
def replicated_fixture(request):
  return replicate(training_graph(request.param), REPLICAS)


def test_no_replica_waits_for_another_one(replicated):
  graph = replicated.graph
  assert any(
      kind == "NoOp" and replica != SHARED
      for kind, replica in zip(graph.op_types, replicated.replica_of_op))
  for op in np.flatnonzero(replicated.replica_of_op != SHARED).tolist():
    before = traversal.ancestors(graph.num_ops, graph.edge_producers, graph.edge_consumers, [op])
    assert set(replicated.replica_of_op[before].tolist()) <= {
        SHARED, int(replicated.replica_of_op[op])}, graph.op_names[op]


def test_a_variable_that_replicas_share_is_updated_once(replicated):
  assert replicated.graph.op_types.count("ResourceApplyMomentum") == 2 * LAYERS


def test_rows_of_a_shared_table_are_looked_up_once_and_gathered_before_they_are_repeated():
  """Three tables have two inputs each, whose gradients are joined before they are gathered."""
  made = ReplicaSource("zoo:recommender:size=tiny:shrink=50000:batch=8").replicas(2)
  once = np.array(made.graph.op_types)[made.replica_of_op == SHARED].tolist()
  assert made.graph.op_types.count("ResourceGather") == once.count("ResourceGather") == 58
  assert once.count("Tile") == 58 - 3 * 2


@pytest.mark.parametrize("mirrored", (False, True))
def test_the_gradients_of_a_called_function_bind_no_replicas_to_one_device(mirrored):
  """They are colocated with the call, of which only an op outside of the step has the name."""
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [4, 8], name="x")
    weights = tf.compat.v1.get_variable("w", [8, 8], use_resource=True)
    called = tf.function(lambda x, w: tf.tanh(x @ w))(x, weights)
    tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(called), name="train")
  replicated = replicate(load_graph(graph.as_graph_def(), fetches=["train"]), 2, mirrored=mirrored)
  for label in np.unique(replicated.graph.colocation):
    of_op = set(replicated.replica_of_op[replicated.graph.colocation == label].tolist())
    assert SHARED in of_op or len(of_op) == 1


def test_every_replica_has_its_own_constants(replicated):
  graph, of_op = replicated.graph, replicated.replica_of_op
  assert REPLICAS in collections.Counter(
      original for kind, original in zip(graph.op_types, replicated.original_of_op.tolist())
      if kind == "Const" and original >= 0).values()
  for producer, _, consumer in graph.edges:
    if graph.op_types[producer] == "Const" and of_op[consumer] != SHARED:
      assert of_op[producer] == of_op[consumer]


def test_symmetric_moves_keep_together_what_must_share_a_device():
  """An embedding: constants of its gradient are colocated with the variable, which exists once."""
  cluster = Cluster.parse("k80:2")
  replicated = ReplicaSource("zoo:bert:size=tiny:steps=8:vocab=64:batch=8").replicas(2)
  problem = PlacementProblem.build(
      replicated.graph, cluster, costs=replicated_costs(replicated, cluster), max_groups=16,
      replicated=replicated)
  placement = anneal_symmetric(problem, Budget(max_evaluations=60))
  colocation = replicated.graph.colocation
  first = np.zeros(len(colocation), dtype=np.int64)
  first[colocation[::-1]] = placement[::-1]
  np.testing.assert_array_equal(placement, first[colocation])


def test_small_gradients_travel_in_packs_of_which_each_device_can_have_one(replicated):
  """12 gradients of 288 bytes a layer: 12 sums without packs."""
  graph = replicated.graph
  sums = [name for name, kind, original in zip(
      graph.op_names, graph.op_types, replicated.original_of_op)
          if kind == "AddN" and original < 0 and name not in replicated.own_reductions]
  assert REPLICAS <= len(sums) < 2 * LAYERS
  crossing = {
      (producer, port) for producer, port, consumer in graph.edges
      if replicated.replica_of_op[producer] == 1 and replicated.replica_of_op[consumer] == SHARED
      and port != CONTROL}
  assert len(crossing) == len(sums) + len(replicated.own_reductions)


def test_packs_hold_what_is_ready_at_about_the_same_time_and_no_more_than_they_may(monkeypatch):
  monkeypatch.setattr(packing, "PACK_BYTES", 600.0)
  graph = replicate(training_graph(), REPLICAS).graph
  packs = [name for name, kind in zip(graph.op_names, graph.op_types) if kind == "SplitV"]
  assert len(packs) == LAYERS / 2  # two layers of 288 bytes, and one that goes above
  ends = [graph.depths[graph.op_index[name]] for name in packs]
  assert ends == sorted(ends) and ends[0] < ends[-1]
