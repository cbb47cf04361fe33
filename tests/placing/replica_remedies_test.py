"""Messages of replicating: what each of them says to do works."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.clusters import Cluster
from placeto_tf.replication import ReplicaSource, replicate
from refusals import sentence

v1 = tf.compat.v1
TRAIN = {"fetches": ["train"]}
QUICK = {"max_evaluations": 5, "check_replicas": False, **TRAIN}


def _graph(rows, make=lambda x: x, shape=None):
  """A graph that trains on x of `rows` rows, of which `make` makes something of 4 columns."""
  graph = tf.Graph()
  with graph.as_default():
    x = v1.placeholder(tf.float32, shape or [rows, 4], name="x")
    w = v1.get_variable("w", [4, 4])
    loss = tf.reduce_mean(tf.square(tf.matmul(make(x), w)), name="loss")
    v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  return graph


def _replicas(graph, count=2, **options):
  """The replicas of a graph; its options are for loading."""
  return ReplicaSource(graph.as_graph_def(), {**TRAIN, **options}).replicas(count)


def test_a_multiple_or_another_number_of_replicas_divides_the_batch():
  said = sentence(_replicas, _graph(None), 4, batch_size=6)
  multiple = int(re.search(r"a multiple of (\d+), or another number of replicas", said).group(1))
  assert _replicas(_graph(None), 4, batch_size=3 * multiple).global_batch == 3 * multiple
  assert _replicas(_graph(None), 3, batch_size=6).global_batch == 6


def test_as_many_replicas_as_are_shown_can_be_placed():
  said = sentence(placeto.place, _graph(None), "k80:2", replicas=4, batch_size=8, **QUICK)
  most = int(re.search(r"choose at most (\d+)", said).group(1))
  placed = placeto.place(_graph(None), "k80:2", replicas=most, batch_size=8, **QUICK)
  assert placed.replication.chosen.replicas == most


def test_the_train_op_has_replicas_where_a_loss_has_none():
  assert "fetch its train op" in sentence(_replicas, _graph(None), fetches=["loss"], batch_size=4)
  assert _replicas(_graph(None), batch_size=4).replicas == 2


def test_the_optimizer_of_several_workers_is_replaced_by_its_inner_one():
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    loss = tf.reduce_mean(tf.matmul(x, v1.get_variable("w", [4, 1])))
    inner = v1.train.GradientDescentOptimizer(0.1)
    step = v1.train.get_or_create_global_step()
    several = v1.train.SyncReplicasOptimizer(inner, 2).minimize(loss, step)
    inner.minimize(loss, name="train")
  said = sentence(_replicas, graph, fetches=[several.name], batch_size=4)
  assert "with the optimizer inside it (its minimize)" in said
  assert _replicas(graph, batch_size=4).replicas == 2


def test_a_batch_is_put_into_the_first_dimension():
  said = sentence(_replicas, _graph(None, tf.transpose, [4, None]), feed_shapes={"x": (4, 8)})
  assert "put the batch into the first dimension of the feeds" in said
  assert _replicas(_graph(None), feed_shapes={"x": (8, 4)}).replicas == 2


def test_a_feed_that_is_no_batch_becomes_a_constant_or_the_others_are_left_open():
  def weighted(rows, feed):
    def make(x):
      weights = v1.placeholder(tf.float32, [4], name="weights") if feed else tf.ones([4])
      return x * weights
    return _graph(rows, make)

  said = sentence(_replicas, weighted(8, True))
  assert "turn feeds that are no batch into constants or variables of the graph" in said
  assert "leave only the first dimension of batches open, with None" in said
  assert _replicas(weighted(8, False)).replicas == 2
  assert _replicas(weighted(None, True), batch_size=8).replicas == 2


def test_examples_that_the_graph_makes_up_are_divided_where_they_are_fed():
  made_up = _graph(None, lambda x: tf.random.normal([8, 4], name="examples"))
  said = sentence(_replicas, made_up)
  assert "name the tensor that holds the examples in feeds, with its shape in feed_shapes" in said
  fed = {"feeds": ["examples"], "feed_shapes": {"examples": (8, 4)}}
  assert _replicas(made_up, **fed).global_batch == 8


def test_a_sparse_feed_is_divided_as_a_dense_one():
  def trained(sparse):
    with tf.Graph().as_default() as graph:
      dense = v1.placeholder(tf.float32, [None, 9], name="dense")
      entries = v1.sparse_placeholder(tf.float32, [None, 9], name="entries")
      y, w = v1.placeholder(tf.float32, [None, 1], name="y"), v1.get_variable("w", [9, 1])
      found = tf.sparse.sparse_dense_matmul(entries, w) if sparse else tf.matmul(dense, w)
      v1.train.GradientDescentOptimizer(0.1).minimize(
          tf.reduce_mean(tf.square(found - y)), name="train")
    return graph

  shapes = {"entries/values": (20,), "entries/indices": (20, 2), "entries/shape": (2,), "y": (8, 1)}
  said = sentence(_replicas, trained(True), feed_shapes=shapes)
  assert "feed sparse and ragged tensors as dense ones" in said
  assert _replicas(trained(False), batch_size=8).replicas == 2


@pytest.mark.parametrize("make", (
    lambda x: x[3:], lambda x: tf.gather(x, [3, 1, 2])), ids=("rows", "gathered"))
def test_an_open_batch_is_divided_where_a_fixed_one_is_not(make):
  said = sentence(_replicas, _graph(8, make), 3)
  assert "leave the first dimension of the feeds open, with None" in said
  assert _replicas(_graph(None, make), 2, batch_size=8).global_batch == 8


def test_a_batch_that_grew_stays_where_it_is_left_open():
  found = _replicas(_graph(8), 3)
  assert any("leave the first dimension of the feeds open, with None, to keep it" in note
             for note in found.notes)
  result = placeto.place(_graph(8), "k80:3", replicas=3, max_evaluations=5, check_replicas=False,
                         **TRAIN)
  unsure = dataclasses.replace(
      result, costs=dataclasses.replace(result.costs, unknown="the rounds of 1 loop are unknown"))
  assert "PlacingResult(At least " in repr(unsure) and "of 1 loop are unknown" in repr(unsure)
  for text in (repr(result), repr(unsure), str(result)):
    assert "The batch grew from 8 to 24 examples a step" in text.splitlines()[0]
  found = _replicas(_graph(None), 3, batch_size=9)
  assert found.global_batch == 9 and not any("grew" in note for note in found.notes)


def test_a_batch_of_an_iterator_is_kept_where_the_iterator_gives_a_smaller_one():
  def iterated(size):
    def taken(x):
      data = tf.data.Dataset.from_tensors(np.ones(4, np.float32)).repeat()
      data = data.batch(size, drop_remainder=True)
      return v1.data.make_one_shot_iterator(data).get_next()
    return _graph(None, taken)

  found = _replicas(iterated(8))
  said = re.search(r"divide the pipeline's batch size by (\d+) to keep it", found.notes[0])
  assert found.global_batch == 16
  assert _replicas(iterated(8 // int(said.group(1)))).global_batch == 8


def _function():
  w = tf.Variable(tf.ones([4, 1]))

  @tf.function(input_signature=[tf.TensorSpec([8, 4])])
  def step(x):
    w.assign_sub(0.1 * tf.matmul(x, tf.matmul(x, w), transpose_a=True))

  return step


def test_variables_of_a_function_are_shared_and_its_batch_has_no_micro_batches():
  options = {"max_evaluations": 5, "check_replicas": False}
  said = sentence(placeto.place, _function(), "k80:2", replicas=2, mirrored_variables=True,
               **options)
  assert "unseen; leave out mirrored" in said
  said = sentence(placeto.place, _function(), "k80:2", replicas="1 x 2", **options)
  assert "give the number of replicas alone, or the graph" in said
  assert placeto.place(_function(), "k80:2", replicas=2, **options).replication.chosen
  assert placeto.place(
      _graph(None), "k80:2", replicas="1 x 2", batch_size=8, **QUICK).replication.chosen


def test_groups_of_micro_batches_share_variables():
  graph = placeto.load_graph(_graph(None), batch_size=4, **TRAIN)
  assert "give a multiple of it" in sentence(replicate, graph, 3, micro_batches=2)
  assert "leave out mirrored" in sentence(replicate, graph, 4, micro_batches=2, mirrored=True)
  assert replicate(graph, 4, micro_batches=2).groups == 2


def test_what_fits_nowhere_fits_with_more_memory_or_a_smaller_batch():
  def cluster(memory_bytes):
    found = Cluster.parse("k80:2").to_json()
    for device in found["devices"]:
      device["memory_bytes"] = memory_bytes
    return Cluster.from_json(found)

  graph = _graph(None, lambda x: tf.matmul(x, tf.ones([4, 4])))
  options = {"replicas": 2, **QUICK}
  said = sentence(placeto.place, graph, cluster(100_000), batch_size=8192, **options)
  assert "add devices or memory, or lower the batch size to " in said
  for memory_bytes, batch in ((1e8, 8192), (100_000, 64)):
    assert placeto.place(graph, cluster(memory_bytes), batch_size=batch, **options).fits
