"""Replicas with variables of their own do the step of the global batch, and stay equal."""

import re

import numpy as np
import pytest
import tensorflow as tf

import graph_files
import sessions
import training_models as models
from placeto_tf.clusters import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.replication import ReplicaSource, packing, replicate, replicated_costs
from placeto_tf.replication.layouts import layouts
from placeto_tf.replication.replicated_graph import SHARED

v1 = tf.compat.v1

REPLICAS = (2, 3, 4)


def session_of(graph, **options):
  return tf.compat.v1.Session(graph=graph, config=sessions.unoptimized(**options))


def counted(batch, dtype):
  """A TF1 train op that counts steps, in reference variables, at a rate that falls with them."""
  x = v1.placeholder(dtype, [batch, 5], name="x")
  y = v1.placeholder(dtype, [batch, 3], name="y")
  step = v1.get_variable(
      "global_step", [], tf.int64, v1.zeros_initializer(), trainable=False, use_resource=False)
  hidden = x
  for name, shape in (("w", [5, 7]), ("v", [7, 3])):
    initial = v1.random_normal_initializer(seed=len(shape) + ord(name))
    hidden = tf.tanh(hidden @ v1.get_variable(
        name, shape, dtype, initial, use_resource=False))
  loss = tf.reduce_mean(tf.square(hidden - y), name="loss")
  rate = v1.train.exponential_decay(tf.constant(0.1, dtype), step, 2, 0.5)
  return v1.train.MomentumOptimizer(rate, 0.9).minimize(loss, step, name="train"), loss


@pytest.mark.parametrize("replicas", (2, 3))
def test_reference_variables_and_a_count_of_steps(proof, replicas):
  replicated = proof(counted, models.dense_inputs, replicas, mirrored=True)
  assert f"replica_{replicas - 1}/global_step" in replicated.graph.op_names


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
      session.run(list(replicated.graph.fetches), replicated.feed({"x:0": x}))
    session.run("tripled" if use_resource else "tripled:0")
    changed = equal_copies(session, copies)
    assert np.abs(changed["w:0"] - sampled["w:0"]).max() > 0.1
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


def normalized(noise):
  """Batch normalization with moving averages, dropout, and gradients that noise is added to."""

  def build():
    x = v1.placeholder(tf.float64, [4, 5], name="x")
    y = v1.placeholder(tf.float64, [4, 3], name="y")
    mean, variance = tf.nn.moments(x @ models.variable("w", [5, 6], "float64"), [0])
    updates = []
    for name, value in (("mean", mean), ("variance", variance)):
      moving = models.variable(f"moving_{name}", [6], "float64")
      updates.append(v1.assign_sub(moving, 0.3 * (moving - value)))
    hidden = (x @ v1.get_default_graph().get_tensor_by_name("w/Read/ReadVariableOp:0")
              - mean) / tf.sqrt(variance + 0.1)
    if noise:
      hidden = v1.nn.dropout(hidden, rate=0.3, seed=5)
    loss = tf.reduce_mean(tf.square(hidden @ models.variable("v", [6, 3], "float64") - y),
                          name="loss")
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    pairs = optimizer.compute_gradients(loss, v1.trainable_variables()[-1:])
    if noise:
      pairs = [(gradient + tf.random.normal(gradient.shape, dtype=tf.float64, seed=7), variable)
               for gradient, variable in pairs]
    with tf.control_dependencies(updates):
      optimizer.apply_gradients(pairs, name="train")
    v1.global_variables_initializer()

  return build


@pytest.mark.parametrize("noise", (False, True))
def test_both_strategies_do_the_same_step(noise):
  """Moving averages take the mean over replicas; noise of the update is one replica's draw."""
  found = {}
  for mirrored in (False, True):
    with tf.Graph().as_default() as graph:
      tf.compat.v1.set_random_seed(3)
      normalized(noise)()
    loaded = load_graph(graph, fetches=["train", "loss:0"])
    replicated = replicate(loaded, 3, mirrored=mirrored)
    placed = replicated.graph.source.tf_graph
    copies = models.mirrored_variables(placed)
    with session_of(placed) as session:
      session.run("init")
      for step in range(5):
        arrays = models.dense_inputs(12, np.random.default_rng(step), "float64")
        session.run(list(replicated.graph.fetches), replicated.feed(arrays))
      with placed.as_default():
        found[mirrored] = session.run({v.name: v for v in placed.get_collection("variables")})
      for name, value in equal_copies(session, copies).items():
        np.testing.assert_array_equal(value, found[True][name])
    assert sorted(copies) == (sorted(found[True]) if mirrored else [])
  for name, value in found[False].items():
    np.testing.assert_allclose(found[True][name], value, rtol=1e-12, err_msg=name)
  assert np.abs(found[True]["moving_mean:0"]).max() > 0


def dense_graph():
  """Three wide layers, their gradients clipped by their norm."""
  with tf.Graph().as_default() as graph:
    v1.set_random_seed(0)
    value = v1.placeholder(tf.float32, [4, 64], name="x")
    for i in range(3):
      weights = v1.get_variable(f"w{i}", [64, 64], use_resource=True)
      bias = v1.get_variable(f"b{i}", [64], use_resource=True)
      value = tf.nn.relu(value @ weights + bias)
    loss = tf.reduce_mean(value, name="loss")
    models.minimize(loss, "momentum", 1.0)
    v1.global_variables_initializer()
  return graph


@pytest.fixture(scope="module", name="mirrored")
def mirrored_fixture():
  return replicate(load_graph(dense_graph(), fetches=["train", "loss:0"]), 4, mirrored=True)


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
  for producer, consumer in zip(graph.edge_producers.tolist(), graph.edge_consumers.tolist()):
    if owner[producer] == SHARED and graph.op_types[producer] == "Mul":
      readers.setdefault(graph.op_names[producer], []).append(int(owner[consumer]))
  packs = {name: found for name, found in readers.items() if "pack" in name}
  assert packs and all(sorted(found) == [0, 1, 2, 3] for found in packs.values())


def test_costs_are_those_that_counting_the_work_gives(mirrored):
  from placeto_tf.costs import estimate_costs

  cluster = Cluster.parse("k80:4")
  counted = estimate_costs(mirrored.graph, cluster, cache=False)
  derived = replicated_costs(mirrored, cluster)
  owned = (mirrored.original_of_op >= 0) & (mirrored.replica_of_op != SHARED)
  np.testing.assert_allclose(derived.compute_us[owned], counted.compute_us[owned])
  np.testing.assert_allclose(derived.persistent_bytes, counted.persistent_bytes)
  np.testing.assert_allclose(derived.output_bytes, counted.output_bytes)
  assert derived.compute_us.sum() == pytest.approx(counted.compute_us.sum(), rel=0.02)


def test_a_replicas_variables_start_on_its_device_and_means_on_all(mirrored):
  cluster = Cluster.parse("cpu:4")
  graph, owner = mirrored.graph, mirrored.replica_of_op
  spread = layouts(mirrored, replicated_costs(mirrored, cluster), [0, 1, 2, 3])[1]
  np.testing.assert_array_equal(spread[owner != SHARED], owner[owner != SHARED])
  sums = [op for op, kind in enumerate(graph.op_types) if kind == "AddN" and owner[op] == SHARED]
  assert {int(spread[op]) for op in sums} == {0, 1, 2, 3}


def test_in_sessions_every_op_is_where_the_placement_says(mirrored):
  cluster = Cluster.parse("cpu:4")
  graph = graph_files.imported(mirrored.graph.source.tf_graph.as_graph_def())
  indices = layouts(mirrored, replicated_costs(mirrored, cluster), [0, 1, 2, 3])[1]
  placement = Placement.from_indices(mirrored.graph, cluster, indices)
  placement.apply(graph)
  x = np.random.default_rng(0).normal(size=[16, 64])
  sessions.assert_runs_as_placed(graph, mirrored, placement, x)


def test_an_optimizer_that_is_not_run_writes_all_replicas(mirrored):
  """Its slots are no part of the step, but its updates reach the variables of the step."""
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [4, 5], name="x")
    loss = tf.reduce_mean(x @ models.variable("w", [5, 3], "float32"))
    v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    v1.train.AdamOptimizer(0.1).minimize(loss, name="other")
    v1.global_variables_initializer()
  replicated = replicate(load_graph(graph, fetches=["train"]), 2, mirrored=True)
  found = replicated.graph.source.tf_graph
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
  with pytest.raises(GraphError, match="ConcreteFunction are objects of the program"):
    replicate(load_graph(function), 2, mirrored=True)


def test_a_function_that_writes_the_variables_serves_all_replicas_if_it_can_be_inlined():
  def graph(call):
    with tf.Graph().as_default() as built:
      w = models.variable("w", [5, 3], "float32")

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


def test_two_replicas_each_take_the_means_themselves(proof):
  replicated = proof(models.perceptron("momentum"), models.dense_inputs, 2, mirrored=True)
  graph = replicated.graph
  sums = [op for op, name in enumerate(graph.op_names)
          if graph.op_types[op] == "AddN" and name.startswith("all_reduce/")]
  of_replica = replicated.replica_of_op[sums].tolist()
  # The loss is fetched: its mean is the only one that is taken once.
  assert of_replica.count(0) == of_replica.count(1) > 0 == len(set(of_replica) - {0, 1, SHARED})
  assert of_replica.count(SHARED) == 1
  for op, replica in zip(sums, of_replica):
    parts = graph.edge_producers[graph.edge_consumers == op]
    assert sorted(replicated.replica_of_op[parts].tolist()) == [0, 1], replica


@pytest.mark.parametrize("replicas", REPLICAS[1:])
def test_a_large_mean_is_taken_in_pieces_on_all_devices(proof, replicas, monkeypatch):
  """Weights of 35 elements: 3 pieces of 11, 12 and 12."""
  monkeypatch.setattr(packing, "PACK_BYTES", 8.0 * 20)
  replicated = proof(models.perceptron("momentum"), models.dense_inputs, replicas, mirrored=True)
  graph = replicated.graph
  pieces = [op for op, name in enumerate(graph.op_names) if re.search("piece_[0-9]+/sum$", name)]
  assert len(pieces) == 2 * replicas  # of two matrices
  cluster = Cluster.parse(f"k80:{replicas}")
  costs = replicated_costs(replicated, cluster)
  sizes = costs.output_bytes[graph.output_offsets[pieces]]
  assert sizes.sum() == 8 * (35 + 21) and sizes[:replicas].max() - sizes[:replicas].min() <= 8
  spread = layouts(replicated, costs, list(range(replicas)))[1]
  assert {int(spread[op]) for op in pieces} == set(range(replicas))


def test_a_table_that_only_a_host_updates_stays_shared_on_gpus(proof):
  """SparseApplyMomentum has no kernel for GPUs: one host would do every replica's update."""
  with tf.Graph().as_default() as graph:
    models.embedding("momentum")(8, "float32")
    tf.compat.v1.global_variables_initializer()
  source = ReplicaSource(load_graph(graph, fetches=["train", "loss:0"]))
  on_gpus = source.replicas(2, True, Cluster.parse("v100:2")).graph.op_names
  assert "replica_1/w" in on_gpus and "replica_1/table" not in on_gpus
  assert "replica_1/table/Momentum" not in on_gpus
  on_cpus = source.replicas(2, True, Cluster.parse("cpu:2")).graph.op_names
  assert "replica_1/w" in on_cpus and "replica_1/table" in on_cpus
  proof(models.embedding("momentum", 0.01), models.word_inputs, 3, mirrored=True,
        single=("table", "table/Momentum"))
