"""Roundings are told from errors, and numbers that overflow from equal ones."""

import dataclasses

import pytest
import tensorflow as tf
from unhurried import compare_training

from placeto_tf.errors import ReplicaMismatchError
from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.runtime import trained_pair
from placeto_tf.runtime.trainable_graph import NotEnoughMemory, TrainableGraph

BATCH = 8


def test_variables_that_hold_rounding_alone_are_said_and_not_in_the_difference():
  """The gradient of a bias before a normalization over the batch is zero, but for its roundings.

  Neither the bias tells anything, nor the variable that keeps the gradient.
  """
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [None, 6], name="x")
    weights = tf.compat.v1.get_variable("weights", initializer=tf.reshape(tf.range(24.0), [6, 4]))
    bias = tf.compat.v1.get_variable("bias", initializer=[0.1, 0.2, 0.3, 0.4])
    hidden = tf.sin(x @ weights) + bias
    hidden -= tf.reduce_mean(hidden, 0)
    loss = tf.reduce_mean(tf.tanh(hidden) ** 2)
    kept = tf.compat.v1.get_variable("kept", initializer=[1.0, 1.0, 1.0, 1.0], trainable=False)
    step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    tf.group(step, tf.compat.v1.assign(kept, tf.gradients(loss, [bias])[0]), name="train")
  source = ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})
  found = compare_training(source.graph, source.replicas(2))
  assert found.checked and found.untold == 2, found
  assert found.largest_difference < 1e-3
  assert "(2 of them tell nothing)" in str(found)
  assert "(1 of them tells nothing)" in str(dataclasses.replace(found, untold=1))


def deep(reduce=tf.reduce_mean, scale=1.0):
  """Forty layers without a normalization: the first step overflows in single precision, and makes
  weights with which later steps do in any."""
  with tf.Graph().as_default() as graph:
    hidden = scale * tf.compat.v1.placeholder(tf.float32, [None, 32], name="x")
    for layer in range(40):
      hidden = hidden @ tf.compat.v1.get_variable(f"weights_{layer}", [32, 32])
    loss = reduce(tf.square(hidden))
    tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, name="train")
  return ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})


def test_numbers_that_overflow_are_not_taken_for_equal_ones():
  of_mean, of_sum = deep(tf.reduce_mean), deep(tf.reduce_sum)
  found = compare_training(of_mean.graph, of_mean.replicas(2))
  assert found.checked and found.steps == 1 and not found.untold, found
  with pytest.raises(ReplicaMismatchError, match="'weights_"):
    compare_training(of_sum.graph, of_mean.replicas(2))


def test_a_graph_that_always_overflows_is_not_checked():
  source = deep(lambda squares: tf.reduce_mean(tf.exp(squares)), 1e38)
  found = compare_training(source.graph, source.replicas(2))
  assert str(found) == "not checked: all variables overflow in the first step"


def test_what_single_precision_rounds_away_is_told_by_double_precision():
  """Large sums over the batch cancel but for a small rest, which the order of adding decides."""
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [None, 6], name="x")
    weights = tf.compat.v1.get_variable("weights", initializer=tf.range(6.0))
    loss = tf.reduce_mean(x * weights)
    mean = tf.reduce_mean(x, 0)
    rest = tf.reduce_mean(1e7 * x + x, 0) - 1e7 * mean
    kept = tf.compat.v1.get_variable("kept", initializer=tf.ones([6]), trainable=False)
    step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    tf.group(step, tf.compat.v1.assign(kept, rest), name="train")
  source = ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})
  found = compare_training(source.graph, source.replicas(2))
  assert found.checked and found.untold == 0 and found.largest_difference < 1e-6, found


def wrong_by(factor, rate=0.1):
  """Two layers, of the first of which the gradient is multiplied."""
  with tf.Graph().as_default() as graph:
    hidden = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
    first = tf.compat.v1.get_variable("first", initializer=tf.fill([8, 8], 0.1))
    last = tf.compat.v1.get_variable("last", initializer=tf.fill([8, 2], 0.1))
    loss = tf.reduce_mean(tf.square(tf.tanh(hidden @ first) @ last - 1.0))
    gradients = tf.gradients(loss, [first, last])
    step = tf.compat.v1.train.GradientDescentOptimizer(rate).apply_gradients(
        [(factor * gradients[0], first), (gradients[1], last)])
    tf.group(step, name="train")
  return ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})


@pytest.mark.parametrize("fault", (False, True))
def test_what_only_double_precision_decides_is_not_checked_without_the_memory(monkeypatch, fault):
  """Errors are large; a small difference of many layers may be rounding."""
  right, given = wrong_by(1.0), wrong_by(1.2 if fault else 1.0 + 1e-3)

  def check(graph, replicated, size):
    if size > 1.0:
      raise NotEnoughMemory("the step takes 26.1 GB of memory")

  monkeypatch.setattr(trained_pair, "check_memory", check)
  if fault:
    with pytest.raises(ReplicaMismatchError, match="'first'"):
      compare_training(right.graph, given.replicas(2))
  else:
    assert str(compare_training(right.graph, given.replicas(2))).startswith(
        "not checked: 'first' differs by ")


@pytest.mark.parametrize("rate", (1e-4, 1e-7, 1e-10))
def test_what_changes_by_little_may_differ_by_little(rate):
  right, wrong = wrong_by(1.0, rate), wrong_by(1.2, rate)
  found = compare_training(right.graph, right.replicas(2))
  assert found.checked and (found.steps, found.untold) == (5, 0), found
  with pytest.raises(ReplicaMismatchError, match="'first'"):
    compare_training(right.graph, wrong.replicas(2))


def test_lookup_tables_are_filled_before_both_train():
  with tf.Graph().as_default() as graph:
    words = tf.compat.v1.placeholder(tf.string, [None, 3], name="words")
    table = tf.lookup.StaticVocabularyTable(tf.lookup.KeyValueTensorInitializer(
        tf.constant(["a", "b"]), tf.constant([0, 1], tf.int64)), 4)
    rows = tf.nn.embedding_lookup(
        tf.compat.v1.get_variable("rows", [6, 4]), table.lookup(words))
    loss = tf.reduce_mean(tf.square(tf.tanh(rows)))
    tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  source = ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})
  for mirrored in (False, True):
    found = compare_training(source.graph, source.replicas(2, mirrored))
    assert found.checked and found.steps == 5, found


def test_steps_that_were_compared_count_where_a_later_one_runs_out_of_time(monkeypatch):
  """A first step needs two runs: of the graph and its replicas."""
  source = wrong_by(1.0)
  replicated, step, found = source.replicas(2), TrainableGraph.step, []
  while not found or found[-1].steps < 3:
    left = len(found)

    def limited(*arguments):
      nonlocal left
      left -= 1
      if left < 0:
        raise tf.errors.DeadlineExceededError(None, None, "")
      return step(*arguments)

    monkeypatch.setattr(TrainableGraph, "step", limited)
    found.append(compare_training(source.graph, replicated, 3))
  steps = [each.steps for each in found]
  assert steps == sorted(steps) and steps[1:3] == [0, 1]
  assert all("takes more than" in each.reason for each in found if not each.steps)
