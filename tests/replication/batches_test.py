import numpy as np
import pytest
import tensorflow as tf
import training_constructs
from unhurried import compare_training

from placeto_tf.clusters import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.errors import GraphError
from placeto_tf.replication import check_specs, load_with_replicas
from placeto_tf.replication.batches import ReplicaSource

SPEC = "zoo:rnnlm:layers=1:hidden=8:steps=2:vocab=16:batch=4"


def test_a_spec_that_names_replicas_is_read_as_these():
  whole, two = load_with_replicas(SPEC), load_with_replicas(f"{SPEC}:replicas=2")
  assert two.op_names == ReplicaSource(SPEC).replicas(2).graph.op_names
  assert {"replica_0", "replica_1"} <= {name.partition("/")[0] for name in two.op_names}
  assert not any(name.startswith("replica_") for name in whole.op_names)


@pytest.mark.parametrize("spec, message", [
    ("zoo:rnnlm:replicas=0", "replicas is '0'"),
    ("zoo:rnnlm:layer=2", "'rnnlm' has no option 'layer=2'"),
    ("family:ptb[0:4]", "stands for 4 graphs"),
    ("zoo:resnet", "no model 'resnet'"), ("model.pb", "no graph file or directory 'model.pb'")])
def test_specs_are_checked_without_building_what_they_name(spec, message):
  assert not check_specs([SPEC + ":replicas=2", "family:ptb[3]", __file__])
  with pytest.raises(GraphError, match=message):
    check_specs([SPEC, spec])


@pytest.mark.parametrize("taken", [
    lambda rows: tf.matmul(rows, rows, transpose_b=True) - tf.eye(9),
    lambda rows: rows[5:],
    lambda rows: rows[0],
    lambda rows: tf.gather(rows, [3, 1, 2]),
    lambda rows: tf.gather(rows, [3, 1, 2, 0, 4, 5, 8, 6, 7])])
def test_a_batch_that_is_neither_divided_nor_grows_is_refused(taken):
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [9, 5], name="x")
    rows = x @ training_constructs.variable("w", [5, 3])
    training_constructs.finish(tf.reduce_mean(tf.square(taken(rows))))
  with pytest.raises(GraphError, match="baked into the graph.*leave the first dimension"):
    ReplicaSource(graph, {"fetches": ["train"]}).replicas(2)


def test_positions_in_a_batch_that_grows_are_counted_on():
  trained = []
  for batch in (9, 18):  # which two replicas do not divide, so that each has 9
    with tf.Graph().as_default() as graph:
      tf.compat.v1.set_random_seed(3)
      x = tf.compat.v1.placeholder(tf.float32, [batch, 5], name="x")
      labels = tf.compat.v1.placeholder(tf.int32, [batch], name="labels")
      rows = tf.reshape(x @ training_constructs.variable("w", [5, 3]), [-1])
      training_constructs.finish(
          tf.reduce_mean(tf.square(tf.gather(rows, 3 * np.arange(batch) + labels))))
      tf.compat.v1.variables_initializer(tf.compat.v1.global_variables(), name="init_all")
    if batch == 9:
      graph = ReplicaSource(graph, {"fetches": ["train"]}).replicas(2).graph.source.tf_graph
    draw = np.random.default_rng(0)
    feeds = {"x:0": draw.normal(size=[18, 5]), "labels:0": draw.integers(0, 3, size=18)}
    with graph.as_default(), tf.compat.v1.Session() as session:
      session.run("init_all")
      for _ in range(2):
        session.run("train", feeds)
      trained.append(session.run(tf.raw_ops.ReadVariableOp(
          resource=graph.get_tensor_by_name("w:0"), dtype=tf.float32)))
  np.testing.assert_allclose(*trained, rtol=1e-5)


def test_a_fixed_batch_is_told_from_other_sizes_that_are_multiples_of_it():
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [4, 8, 4], name="x")
    w = training_constructs.variable("w", [4, 4])
    rows = tf.reshape(tf.reshape(x, [32, 4]) @ w, [4, 8, 4])
    steps = tf.unstack(tf.reshape(tf.transpose(rows, [1, 0, 2]), [8, 16, 1]))
    state = tf.zeros([4, 8])
    for step in steps:
      state = tf.tanh(state + tf.concat([tf.reshape(step, [4, 4]), tf.zeros([4, 4])], 1))
    training_constructs.finish(tf.reduce_sum(tf.square(state)) / 4.0)
  source = ReplicaSource(graph, {"fetches": ["train", "loss:0"]})
  made = source.replicas(2)
  assert made.global_batch == 4
  found = compare_training(source.graph, made, 2)
  assert found.checked and found.largest_difference < 1e-5


@pytest.mark.parametrize("mirrored", (False, True))
def test_each_replica_has_the_memory_of_its_examples(mirrored):
  """Transformer-XL's memory is a variable with a row for each example."""
  source = ReplicaSource(
      "zoo:transformer_xl:layers=1:batch=4:segment=6:memory=4:heads=2:width=4:inner=8:vocab=20")
  replicated = source.replicas(2, mirrored)
  found = compare_training(source.graph, replicated, steps=3)
  assert found.checked and found.largest_difference < 1e-5
  assert {"layer_0/memory", "replica_1/layer_0/memory"} <= {
      name.replace("replica_0/", "") for name in replicated.graph.op_names}
  # A concatenation of the handles would have a kernel nowhere.
  assert allowed_devices(replicated.graph, Cluster.parse("v100:2")).any(axis=1).all()
