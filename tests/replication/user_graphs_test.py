"""Replicas of graphs as programs make them: queues, scalar feeds, fetches by name, captures."""

import numpy as np
import pytest
import tensorflow as tf

import graph_files
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.replication import replicate
from placeto_tf.replication.batches import ReplicaSource

v1 = tf.compat.v1


def fetched(graph, fetches, feeds, init="init"):
  with tf.compat.v1.Session(graph=graph) as session:
    session.run(init)
    return [session.run(fetches, feed) for feed in feeds]


def linear(x, name="w"):
  return x @ tf.compat.v1.get_variable(name, [x.shape[1], 3], initializer=tf.ones_initializer())


def minimized(loss):
  tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  tf.compat.v1.global_variables_initializer()


@pytest.fixture(name="queues")
def queues_fixture(tmp_path):
  """(batch) -> path of a .meta that trains on batches of a queue, which a queue runner fills."""

  def make(batch):
    with tf.Graph().as_default() as graph:
      number = v1.train.limit_epochs(tf.constant([1.0, 2.0, 3.0, 3.5]), name="source")
      rows = v1.train.batch([tf.reshape(number, [4])], batch, capacity=64)
      tf.reduce_mean(tf.square(linear(rows) - 1.0), name="loss")
      minimized(graph.get_tensor_by_name("loss:0"))
      assert v1.get_collection("queue_runners")
      path = str(tmp_path / f"{batch}.meta")
      v1.train.export_meta_graph(path)
    return path

  return make


def losses_of_queues(meta_graph):
  """The losses of three steps of a graph whose queues are filled by its queue runners."""
  with tf.Graph().as_default() as graph, v1.Session() as session:
    v1.train.import_meta_graph(meta_graph)
    assert v1.get_collection("queue_runners")
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer(),
                 v1.tables_initializer()])
    coordinator = v1.train.Coordinator()
    threads = v1.train.start_queue_runners(session, coordinator)
    losses = [session.run(["loss:0", "train"])[0] for _ in range(3)]
    coordinator.request_stop()
    session.run([op for op in graph.get_operations() if op.type == "QueueCloseV2"
                 and op.get_attr("cancel_pending_enqueues")])
    coordinator.join(threads, ignore_live_threads=True)
  assert losses[0] != losses[1]
  return losses


@pytest.mark.parametrize("mirrored", (False, True))
def test_collections_of_queue_runners_are_kept_and_variables_found_beside_them(queues, mirrored):
  replicated = replicate(load_graph(queues(2), fetches=["train", "loss:0"]), 2, mirrored=mirrored)
  np.testing.assert_allclose(
      losses_of_queues(replicated.graph.source.proto), losses_of_queues(queues(4)), rtol=1e-5)


def test_a_batch_of_a_queue_is_divided_as_the_shapes_that_hold_it_are():
  """The gradient of an embedding holds the batch of ids, whose shape a table does not tell."""
  with tf.Graph().as_default():
    words = v1.train.limit_epochs(tf.constant(["a", "b", "c", "b"]), name="source")
    table = tf.lookup.StaticVocabularyTable(tf.lookup.KeyValueTensorInitializer(
        ["a", "b", "c"], tf.range(3, dtype=tf.int64)), 2)
    rows = v1.get_variable("rows", initializer=tf.reshape(tf.range(20.0), [5, 4]) / 20.0)
    ids = table.lookup(v1.train.batch([words], 4, capacity=64, enqueue_many=True))
    minimized(tf.reduce_mean(tf.square(tf.nn.embedding_lookup(rows, ids)), name="loss"))
    meta_graph = v1.train.export_meta_graph()
  replicated = ReplicaSource(meta_graph, {"fetches": ["train", "loss:0"]}).replicas(2)
  assert replicated.global_batch == 4 and not replicated.notes
  np.testing.assert_allclose(
      losses_of_queues(replicated.graph.source.proto), losses_of_queues(meta_graph), rtol=1e-5)


@pytest.mark.parametrize("mirrored, drop", ((False, True), (True, True), (True, False)))
def test_batches_of_an_iterator_and_variables_in_parts(mirrored, drop):
  """Four pixels and a temperature of 4 count no examples; the divisor of a sum of errors does."""
  def iterated(batch, doubtful=1.0):
    with tf.Graph().as_default():
      rows = np.random.default_rng(0).random([24, 4, 4], np.float32)
      data = tf.data.Dataset.from_tensor_slices(rows).repeat().batch(batch, drop_remainder=drop)
      x = v1.data.make_one_shot_iterator(data).get_next()
      scale = v1.get_variable("scale", [4, 1], initializer=tf.ones_initializer())
      with v1.variable_scope("parts", partitioner=v1.fixed_size_partitioner(2)):
        hidden = tf.nn.relu(linear(tf.reduce_mean(x * scale, 1) / 4.0))
      errors = tf.reduce_sum(tf.square(linear(hidden, "out") - 1.0), 1)
      minimized(tf.divide(tf.reduce_sum(errors) / batch, doubtful, name="loss"))
      return v1.train.export_meta_graph().graph_def

  def replicas(graph_def):
    graph = load_graph(graph_def, fetches=["train", "loss:0"], batch_size=None if drop else 4)
    return replicate(graph, 2, mirrored=mirrored)

  found = [fetched(graph_files.imported(each), ["loss:0", "train"], [{}] * 3)
           for each in (iterated(8), replicas(iterated(4)).graph.origin.graph_def)]
  np.testing.assert_allclose(*[[loss for loss, _ in each] for each in found], rtol=1e-5)
  with pytest.raises(GraphError, match="may count the examples"):
    replicas(iterated(4, doubtful=8.0))


@pytest.mark.parametrize("mirrored", (False, True))
def test_placeholders_keep_their_defaults(mirrored):
  with tf.Graph().as_default() as graph:
    x = v1.placeholder_with_default(np.arange(12, dtype="f").reshape(4, 3) / 9, [None, 3], "x")
    keep = v1.placeholder_with_default(1.0, [], "keep")
    minimized(tf.reduce_mean(tf.square(linear(x) * keep - 1.0), name="loss"))
  replicated = replicate(load_graph(
      graph, fetches=["train", "loss:0"], batch_size=2), 2, mirrored=mirrored)
  feeds = [{}, {"x:0": np.eye(2, 3)}, {"keep:0": 0.5}, {}]
  found = [fetched(each, ["loss:0", "train"], feeds) for each in (
      graph, replicated.graph.origin.tf_graph)]
  np.testing.assert_allclose(*[[loss for loss, _ in each] for each in found], rtol=1e-5)


def test_a_scalar_fed_to_a_placeholder_of_unknown_rank_is_the_same_for_all_replicas():
  with tf.Graph().as_default() as graph:
    x, keep = v1.placeholder(tf.float32, [None, 5], name="x"), v1.placeholder(
        tf.float32, name="keep")
    training = v1.placeholder(tf.bool, name="training")
    loss = tf.reduce_mean(tf.square(linear(
        tf.reshape(tf.cond(training, lambda: x * keep, lambda: x), [-1, 5])) - 1.0))
    minimized(tf.identity(loss, name="loss"))
  source = ReplicaSource(graph.as_graph_def(), {
      "fetches": ["train", "loss:0"], "batch_size": 8,
      "feed_shapes": {"keep": (), "training": ()}})
  feeds = [{"x:0": np.random.default_rng(i).random([8, 5]), "keep:0": 0.5, "training:0": i < 2}
           for i in range(3)]
  found = [fetched(graph_files.imported(each.origin.graph_def), ["loss:0", "train"], feeds)
           for each in (source.graph, source.replicas(2).graph)]
  np.testing.assert_allclose(*[[loss for loss, _ in each] for each in found], rtol=1e-5)


@pytest.mark.parametrize("mirrored", (False, True))
def test_an_op_fetched_by_its_name_keeps_the_tensors_it_had(mirrored):
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [None, 5], name="x")
    out = tf.identity(linear(x), name="out")
    tf.nn.moments(out, 0, name="both")
    loss = tf.reduce_mean(tf.square(out - 1.0), name="loss")
    tf.split(out, 3, 1, name="columns")
    minimized(loss)
  source = ReplicaSource(graph, {
      "fetches": ["train", "loss", "out", "columns"], "batch_size": 8})
  feeds = [{"x:0": np.random.default_rng(0).random([8, 5])}]
  names = ["loss:0", "out:0", "columns:0", "columns:2"]
  found = [fetched(graph_files.imported(each.origin.graph_def),
                   [*names, "loss", "train"], feeds)[0][:4]
           for each in (source.graph, source.replicas(2, mirrored).graph)]
  for one, other in zip(*found):
    np.testing.assert_allclose(other, one, rtol=1e-5)


@pytest.mark.parametrize("mirrored", (False, True))
def test_a_called_function_whose_ops_are_colocated_with_an_op_outside_of_it(mirrored):
  with tf.Graph().as_default() as graph:
    hidden = linear(v1.placeholder(tf.float32, [None, 5], name="x"))

    @tf.function
    def called(value):
      with v1.colocate_with(hidden.op):
        return tf.tanh(value) * 2.0

    minimized(tf.reduce_mean(tf.square(linear(called(hidden), "u") - 1.0), name="loss"))
  assert any(f"loc:@{hidden.op.name}" in str(node) for function in (
      graph.as_graph_def().library.function) for node in function.node_def)
  source = ReplicaSource(graph, {"fetches": ["train", "loss"], "batch_size": 8})
  rng, found = np.random.default_rng(0), []
  feeds = [{"x:0": rng.random([8, 5])} for _ in range(3)]
  for each in (source.graph, source.replicas(2, mirrored).graph):
    with graph_files.imported(each.origin.graph_def).as_default() as run:
      values = [tf.raw_ops.ReadVariableOp(
          resource=run.get_tensor_by_name(f"{name}:0"), dtype=tf.float32) for name in "wu"]
      with v1.Session() as session:
        session.run("init")
        found.append([])
        for feed in feeds:
          session.run("train", feed)
          found[-1].append(session.run(values))
  for one, other in zip(*found):
    for left, right in zip(one, other):
      np.testing.assert_allclose(right, left, rtol=1e-5)
  assert np.abs(found[0][0][0] - found[0][-1][0]).max() > 0.001


def concrete(step, *specs):
  return tf.function(step).get_concrete_function(*specs)


def compare(function, replicated, variables, args):
  """Asserts that a step of replicas returns, and makes of the variables, what the function does."""
  first = [each.numpy() for each in variables]
  results = []
  for each in (function, replicated):
    for variable, value in zip(variables, first):
      variable.assign(value)
    results.append([each(*args).numpy(), *(each.numpy() for each in variables)])
  for one, other, before in zip(*results, [0.0, *first]):
    np.testing.assert_allclose(other, one, rtol=1e-5)
    assert np.abs(one - before).max() > 0


def test_tensors_tables_and_texts_that_a_function_captures():
  weights = tf.constant(np.random.default_rng(0).random(300), tf.float32)
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64)), 2)
  kernel = tf.Variable(np.random.default_rng(1).random([3, 300]).astype("f"))

  def step(words, unread):
    del unread
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(tf.one_hot(table.lookup(words), 3) @ kernel - 1.0) * weights)
    kernel.assign_sub(tape.gradient(loss, kernel))
    return loss

  def traced(batch):
    return concrete(step, tf.TensorSpec([batch], tf.string), tf.TensorSpec([batch, 1], tf.string))

  whole = traced(4)
  replicated = replicate(load_graph(traced(2)), 2, whole=load_graph(whole))
  compare(whole, replicated.graph.source.tf_graph, [kernel],
          (tf.constant(["a", "b", "a", "c"]), tf.constant([["x"]] * 4)))


@pytest.mark.parametrize("batch", (512, 1024, 2048))
def test_zeros_that_are_a_constant_for_a_part_of_the_batch_and_a_fill_for_all(batch):
  """TensorFlow writes fewer than 1,000 zeros or ones as a constant."""
  kernel = tf.Variable(np.random.default_rng(1).random([3, 1]).astype("f"))

  def step(x):
    with tf.GradientTape() as tape:
      out = x @ kernel
      margin = tf.where(out > 0.5, out, tf.zeros_like(out)) + tf.ones_like(out)
      loss = tf.reduce_mean(margin) - tf.reduce_mean(tf.square(out - tf.zeros([len(x), 1])))
    kernel.assign_sub(tape.gradient(loss, kernel))
    return loss

  whole = concrete(step, tf.TensorSpec([batch, 3]))
  part = concrete(step, tf.TensorSpec([batch // 2, 3]))
  compare(whole, replicate(load_graph(part), 2, whole=load_graph(whole)).graph.source.tf_graph,
          [kernel], (tf.constant(np.random.default_rng(2).random([batch, 3]), tf.float32),))
