"""Replicas with variables of their own do the step of the global batch, and stay equal."""

import re

import numpy as np
import pytest
import tensorflow as tf
import training_constructs as constructs
from unhurried import compare_training

import graph_files
import sessions
import training_models as models
from placeto_tf.clusters import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.replication import ReplicaSource, packing, replicate, replicated_costs
from placeto_tf.replication.layouts import layouts
from placeto_tf.replication.replicated_graph import SHARED

v1 = tf.compat.v1

def session_of(graph, **options):
  return tf.compat.v1.Session(graph=graph, config=sessions.unoptimized(**options))


def random_graph(use_resource):
  """A dense layer with weights drawn at random, moments, and a saver of its own."""
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [4, 5], name="x")
    w = v1.get_variable("w", [5, 3], tf.float32, v1.random_normal_initializer(),
                        use_resource=use_resource)
    b = v1.get_variable("b", initializer=tf.random.normal([3]), use_resource=use_resource)
    loss = tf.reduce_mean(tf.square(x @ w + b), name="loss")
    v1.train.AdamOptimizer(0.1).minimize(loss, name="train")
    v1.global_variables_initializer()
    saver = v1.train.Saver()
    v1.assign(w, w * 3, name="tripled")
  return graph, saver


def equal_copies(session, copies):
  """The values of all variables, after a check that every replica has the same."""
  values = {}
  for name, (value, *others) in session.run(copies).items():
    values[name] = value
    for other in others:
      np.testing.assert_array_equal(other, value, err_msg=name)
  return values


@pytest.mark.parametrize("use_resource", (True, False), ids=("resource", "reference"))
def test_initialising_and_restoring_serve_all_replicas(tmp_path, use_resource):
  graph, saver = random_graph(use_resource)
  replicated = replicate(load_graph(graph, fetches=["train", "loss:0"]), 3, mirrored=True)
  found = replicated.graph.source.tf_graph
  copies = models.mirrored_variables(found)
  with found.as_default():
    later = tf.compat.v1.global_variables_initializer()
  names = saver.as_saver_def()
  with session_of(found) as session:
    session.run("init")
    sampled = equal_copies(session, copies)
    assert set(sampled) >= {"w:0", "b:0", "w/Adam:0", "w/Adam_1:0", "beta1_power:0"}
    assert np.abs(sampled["w:0"]).min() > 0
    path = session.run(names.save_tensor_name,
                       {names.filename_tensor_name: str(tmp_path / "saved")}).decode()
    x = np.random.default_rng(0).normal(size=[12, 5])
    for _ in range(2):
      session.run(list(replicated.graph.fetches), {"x:0": x})
    session.run("tripled" if use_resource else "tripled:0")
    assert np.abs(equal_copies(session, copies)["w:0"] - sampled["w:0"]).max() > 0.1
    session.run(names.restore_op_name, {names.filename_tensor_name: path})
    for name, value in equal_copies(session, copies).items():
      np.testing.assert_array_equal(value, sampled[name], err_msg=name)
    session.run(later)  # made after the replicas
    assert np.abs(equal_copies(session, copies)["w:0"] - sampled["w:0"]).max() > 0
  # The checkpoint is one of the graph before.
  with session_of(graph) as session:
    saver.restore(session, path)
    read = "b/Read/ReadVariableOp:0" if use_resource else "b:0"
    np.testing.assert_array_equal(session.run(read), sampled["b:0"])


@pytest.fixture(scope="module", name="mirrored")
def mirrored_fixture():
  graph = models.dense_graph(biases=True, clip=1.0)
  return replicate(load_graph(graph, fetches=["train", "loss:0"]), 4, mirrored=True)


def test_replicas_meet_at_means_alone(mirrored):
  graph, owner = mirrored.graph, mirrored.replica_of_op
  for producer, consumer in zip(graph.edge_producers, graph.edge_consumers):
    crosses = owner[producer] != owner[consumer] and SHARED not in (
        owner[producer], owner[consumer])
    assert not crosses or graph.op_names[consumer] == "train"  # which waits for all
  once = {graph.op_types[op] for op in np.flatnonzero(owner == SHARED)}
  # The loss is fetched, the feed is divided.
  assert once == {"AddN", "Mul", "Const", "IdentityN", "Placeholder", "Split"}
  variables = [name for name, kind in zip(graph.op_names, graph.op_types) if kind == "VarHandleOp"]
  assert {"w0", "w0/Momentum", "replica_3/w0", "replica_3/w0/Momentum"} < set(variables)
  assert len(variables) == 4 * 12


def test_each_pack_of_means_travels_once_to_each_replica(mirrored):
  graph, owner = mirrored.graph, mirrored.replica_of_op
  readers = {}
  for producer, _, consumer in graph.edges:
    if owner[producer] == SHARED and graph.op_types[producer] == "Mul":
      readers.setdefault(graph.op_names[producer], []).append(int(owner[consumer]))
  packs = {name: found for name, found in readers.items() if "pack" in name}
  assert packs and all(sorted(found) == [0, 1, 2, 3] for found in packs.values())


def test_a_replicas_variables_start_on_its_device_and_means_on_all(mirrored):
  cluster = Cluster.parse("cpu:4")
  graph, owner = mirrored.graph, mirrored.replica_of_op
  spread = layouts(mirrored, replicated_costs(mirrored, cluster), [0, 1, 2, 3])[1]
  np.testing.assert_array_equal(spread[owner != SHARED], owner[owner != SHARED])
  sums = [op for op, kind in enumerate(graph.op_types) if kind == "AddN" and owner[op] == SHARED]
  assert {int(spread[op]) for op in sums} == {0, 1, 2, 3}


def test_an_optimizer_that_is_not_run_writes_all_replicas(mirrored):
  """Its slots are no part of the step, but its updates reach the variables of the step."""
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [4, 5], name="x")
    loss = tf.reduce_mean(x @ constructs.variable("w", [5, 3]))
    v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    v1.train.AdamOptimizer(0.1).minimize(loss, name="other")
    v1.global_variables_initializer()
  found = replicate(load_graph(graph, fetches=["train"]), 2, mirrored=True).graph.source.tf_graph
  copies = models.mirrored_variables(found)
  assert "w/Adam:0" in copies
  with session_of(found) as session:
    session.run("init")
    before = equal_copies(session, copies)
    session.run("other", {"replica_0/x:0": np.ones([4, 5])})
    assert np.abs(equal_copies(session, copies)["w:0"] - before["w:0"]).max() > 0


def test_variables_of_a_function_are_not_mirrored():
  w = tf.Variable(tf.ones([5, 3]))
  function = models.function(w, 4)
  with pytest.raises(GraphError, match="variables are objects of the program"):
    ReplicaSource(load_graph(function)).replicas(2, mirrored=True)


def test_a_function_that_writes_the_variables_serves_all_replicas_if_it_can_be_inlined():
  def graph(call):
    with tf.Graph().as_default() as built:
      w = constructs.variable("w", [5, 3])

      @tf.function
      def reset(handle):
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([5, 3]))
        return tf.constant(1)

      loss = tf.reduce_mean(tf.compat.v1.placeholder(tf.float32, [4, 5], name="x") @ w)
      tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
      call(reset.get_concrete_function(tf.TensorSpec([], tf.resource)), w.handle)
      tf.compat.v1.global_variables_initializer()
    return load_graph(built.as_graph_def(), fetches=["train"])

  def remote(function, handle):
    function.add_to_graph()
    tf.raw_ops.RemoteCall(target="/CPU:0", args=[handle], Tout=[tf.int32], f=function, name="call")

  found = replicate(graph(lambda function, handle: function(handle)), 2, mirrored=True)
  placed = graph_files.imported(found.graph.source.graph_def)
  copies = models.mirrored_variables(placed)
  with session_of(placed) as session:
    session.run("init")
    assert equal_copies(session, copies)["w:0"].any()
    session.run("StatefulPartitionedCall")
    assert not equal_copies(session, copies)["w:0"].any()
  with pytest.raises(GraphError, match="'call' .RemoteCall. may write variables of the step"):
    replicate(graph(remote), 2, mirrored=True)


def trained_replicas(name, replicas, cluster=None):
  """Mirrored replicas of a construct, which train what it trains."""
  source = constructs.source(name, 12)
  replicated = source.replicas(replicas, True, cluster)
  found = compare_training(source.graph, replicated)
  assert found.checked and found.largest_difference < 1e-5
  return replicated


def test_two_replicas_each_take_the_means_themselves():
  replicated = trained_replicas("mean_loss", 2)
  graph = replicated.graph
  sums = [op for op, name in enumerate(graph.op_names)
          if graph.op_types[op] == "AddN" and name.startswith("all_reduce/")]
  of_replica = replicated.replica_of_op[sums].tolist()
  # The loss is fetched: no other mean is taken once for both.
  assert of_replica.count(0) == of_replica.count(1) > 0 == len(set(of_replica) - {0, 1, SHARED})
  assert of_replica.count(SHARED) <= 1
  for op, replica in zip(sums, of_replica):
    parts = graph.edge_producers[graph.edge_consumers == op]
    assert sorted(replicated.replica_of_op[parts].tolist()) == [0, 1], replica


@pytest.mark.parametrize("replicas", (3, 4))
def test_a_large_mean_is_taken_in_pieces_on_all_devices(replicas, monkeypatch):
  """Weights of 35 elements: 3 pieces of 11, 12 and 12."""
  monkeypatch.setattr(packing, "PACK_BYTES", 4.0 * 20)
  replicated = trained_replicas("mean_loss", replicas)
  graph = replicated.graph
  pieces = [op for op, name in enumerate(graph.op_names) if re.search("piece_[0-9]+/sum$", name)]
  assert len(pieces) == 2 * replicas  # of two matrices
  costs = replicated_costs(replicated, Cluster.parse(f"k80:{replicas}"))
  sizes = costs.output_bytes[graph.output_offsets[pieces]]
  assert sizes.sum() == 4 * (35 + 21) and sizes[:replicas].max() - sizes[:replicas].min() <= 4
  spread = layouts(replicated, costs, list(range(replicas)))[1]
  assert {int(spread[op]) for op in pieces} == set(range(replicas))


def test_a_table_that_only_a_host_updates_stays_shared_on_gpus():
  """SparseApplyMomentum has no kernel for GPUs: one host would do every replica's update."""
  name = "rows_of_an_embedding_by_Momentum"
  on_gpus = trained_replicas(name, 2, Cluster.parse("v100:2")).graph.op_names
  assert "replica_1/v" in on_gpus and "replica_1/table" not in on_gpus
  assert "replica_1/table/Momentum" not in on_gpus
  on_cpus = trained_replicas(name, 2, Cluster.parse("cpu:2")).graph.op_names
  assert "replica_1/v" in on_cpus and "replica_1/table" in on_cpus
