"""`compare_training`: what it compares, what it catches, and when it does not run."""

import dataclasses
import time

import numpy as np
import pytest
import training_constructs as constructs
from unhurried import compare_training

from placeto_tf.errors import GraphError, ReplicaMismatchError
from placeto_tf.graphs import load_graph
from placeto_tf.replication import propagation, replicate
from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.replication.kinds import Partial, Same
from placeto_tf.runtime import comparing

BATCH = 8


def built(name):
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    tf.compat.v1.set_random_seed(3)
    fetches = constructs.CONSTRUCTS[name]()
    tf.compat.v1.global_variables_initializer()
  return ReplicaSource(
      graph, {"fetches": ["train", *(each.name for each in fetches)], "batch_size": BATCH})


@pytest.mark.parametrize("mirrored", (False, True))
def test_it_says_what_was_compared(mirrored):
  source = built("mean_loss")
  found = compare_training(source.graph, source.replicas(2, mirrored), steps=3)
  assert found.checked and (found.steps, found.variables, found.fetches) == (3, 6, 1)
  assert 0 <= found.largest_difference < 1e-5 and found.seconds > 0
  assert str(found).startswith("checked: 3 steps, 6 variables, largest difference ")


@pytest.mark.parametrize("wrong, name", [
    # A sum that is taken for a value that all replicas share, as in a loss without a mean.
    (Same(0.0), "sum_loss"),
    # A maximum that is added up.
    (Partial("sum"), "largest_error"),
    # A mean of whose power the analysis is wrong.
    (Partial("sum", 0.0), "mean_loss"),
])
def test_a_wrong_kind_is_caught(monkeypatch, wrong, name):
  """Reductions over the batch are given another kind than they have."""
  source = built(name)
  part = source.part(2)
  rules = propagation.AxisRules

  def planted(self, op, kinds, right=rules._reduce):
    found = right(self, op, kinds)
    return wrong if isinstance(found, Partial) else found

  from placeto_tf.replication import axis_rules

  monkeypatch.setitem(axis_rules._RULES, {"sum_loss": "Sum", "largest_error": "Max"}.get(
      name, "Mean"), planted)
  replicated = replicate(part, 2, whole=source.graph)
  with pytest.raises(ReplicaMismatchError) as caught:
    compare_training(source.graph, replicated)
  message = str(caught.value)
  assert "2 replicas train something else than the graph: after step 1 " in message
  assert "\n" not in message and "one replica" in message


@pytest.mark.parametrize("name", (
    "mean_loss", "batch_normalization", "fused_batch_normalization"))
def test_a_variable_that_is_off_by_a_little_is_caught_and_named(name):
  """The replicas' own graph is damaged: one learning rate of many is half of a percent larger."""
  source = built(name)
  replicated = source.replicas(2)
  origin = replicated.graph.source
  damaged = type(origin.graph_def)()
  damaged.CopyFrom(origin.graph_def)
  import tensorflow as tf

  node = next(each for each in damaged.node if each.op == "ResourceApplyMomentum")
  rate = damaged.node.add()
  rate.CopyFrom(next(each for each in damaged.node if each.name == node.input[2]))
  rate.name = "other_rate"
  value = tf.make_ndarray(rate.attr["value"].tensor)
  rate.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.float32(value * 1.005)))
  node.input[2] = "other_rate"
  graph = load_graph(damaged, fetches=replicated.graph.fetches,
                     feed_shapes={name.rpartition(":")[0]: shape
                                  for name, shape in origin.feed_shapes.items()})
  order = [replicated.graph.op_index.get(name, -1) for name in graph.op_names]
  changed = dataclasses.replace(
      replicated, graph=graph,
      original_of_op=np.array([replicated.original_of_op[i] if i >= 0 else -1 for i in order]),
      replica_of_op=np.array([replicated.replica_of_op[i] if i >= 0 else -1 for i in order]))
  variable = node.input[0]
  with pytest.raises(ReplicaMismatchError, match=f"'{variable}' by"):
    compare_training(source.graph, changed)


def test_one_replica_is_the_graph_itself():
  source = built("mean_loss")
  found = compare_training(source.graph, source.replicas(1))
  assert not found.checked and str(found) == "not checked: one replica is the unchanged graph"


def test_a_step_that_takes_too_long_is_said():
  source = built("mean_loss")
  found = compare_training(source.graph, source.replicas(2), time_limit_s=0.0)
  assert not found.checked and "takes more than 0 s" in str(found)


def test_after_half_of_the_time_no_further_step_begins():
  source = built("mean_loss")
  found = compare_training(
      source.graph, source.replicas(2), time_limit_s=1000.0, started=time.monotonic() - 501.0)
  assert found.checked and found.steps == 1  # what has been done counts


def test_variables_that_do_not_fit_into_memory_are_not_trained(monkeypatch):
  source = built("mean_loss")
  monkeypatch.setattr(comparing, "_free_bytes", lambda: 100.0)
  found = compare_training(source.graph, source.replicas(2))
  assert not found.checked and "of memory" in str(found)


def test_an_op_that_does_not_run_here_is_no_fault_of_the_replicas():
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    x, y = constructs.inputs()
    with tf.control_dependencies([tf.debugging.assert_less(x, -100.0)]):
      constructs.finish(constructs.square_error(constructs.network(x), y))
    tf.compat.v1.global_variables_initializer()
  source = ReplicaSource(graph, {"fetches": ["train"], "batch_size": BATCH})
  found = compare_training(source.graph, source.replicas(2))
  assert not found.checked and "does not run on this machine" in found.reason
  assert "\n" not in found.reason


def test_a_graph_that_is_none():
  with pytest.raises(GraphError):
    compare_training(7, built("mean_loss").replicas(2))


def test_variables_that_hold_rounding_alone_are_said_and_not_in_the_difference():
  """The gradient of a bias before a normalization over the batch is zero, but for its roundings.

  Neither the bias tells anything, nor the variable that keeps the gradient.
  """
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    x = tf.compat.v1.placeholder(tf.float32, [None, 6], name="x")
    weights = tf.compat.v1.get_variable("weights", initializer=tf.reshape(tf.range(24.0), [6, 4]))
    bias = tf.compat.v1.get_variable("bias", initializer=[0.1, 0.2, 0.3, 0.4])
    hidden = tf.sin(x @ weights) + bias
    hidden -= tf.reduce_mean(hidden, 0)
    loss = tf.reduce_mean(tf.tanh(hidden) ** 2)
    kept = tf.compat.v1.get_variable("kept", initializer=[1.0, 1.0, 1.0, 1.0], trainable=False)
    step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    gradient = tf.gradients(loss, [bias])[0]
    tf.group(step, tf.compat.v1.assign(kept, gradient), name="train")
  source = ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})
  found = compare_training(source.graph, source.replicas(2))
  assert found.checked and found.untold == 2, found
  assert found.largest_difference < 1e-3
  assert "of them tell nothing" in str(found)


def deep(reduce, scale=1.0):
  """Forty layers without a normalization: with weights as they are first tried, they overflow."""
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    hidden = scale * tf.compat.v1.placeholder(tf.float32, [None, 32], name="x")
    for layer in range(40):
      hidden = hidden @ tf.compat.v1.get_variable(f"weights_{layer}", [32, 32])
    loss = reduce(tf.square(hidden))
    tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, name="train")
  return ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})


def test_numbers_that_overflow_are_not_taken_for_equal_ones():
  import tensorflow as tf

  of_mean, of_sum = deep(tf.reduce_mean), deep(tf.reduce_sum)
  found = compare_training(of_mean.graph, of_mean.replicas(2))
  assert found.checked and found.steps == 5 and not found.untold, found
  with pytest.raises(ReplicaMismatchError, match="'weights_"):
    compare_training(of_sum.graph, of_mean.replicas(2))


def test_a_graph_that_always_overflows_is_not_checked():
  import tensorflow as tf

  source = deep(tf.reduce_mean, 1e38)
  found = compare_training(source.graph, source.replicas(2))
  assert str(found) == "not checked: all variables overflow in the first step"


def test_what_single_precision_rounds_away_is_told_by_double_precision():
  """Large sums over the batch cancel but for a small rest, which the order of adding decides."""
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
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


@pytest.mark.parametrize("mirrored", (False, True))
@pytest.mark.parametrize("inner, outer", ((2, 2), (3, 2), (2, 4)))
def test_replicas_of_replicas_train_what_the_graph_trains(inner, outer, mirrored):
  """Micro-batches in data parallelism: the inner sum is taken before the outer one."""
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    fetches = constructs.CONSTRUCTS["masked"]()
  options = {"fetches": ["train", *(each.name for each in fetches)]}
  examples = 4 * inner * outer
  part = ReplicaSource(graph, {**options, "batch_size": examples // outer}).replicas(inner)
  replicated = replicate(part.graph, outer, mirrored=mirrored)
  assert (part.global_batch, replicated.global_batch) == (examples // outer, examples)
  found = compare_training(
      load_graph(graph, **options, batch_size=examples), replicated, steps=3)
  assert found.checked and found.largest_difference < 1e-5, found


def by_mask(of_ids, full):
  """A mean over what a mask leaves; `full`: as if it left everything."""
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    if of_ids:
      ids = tf.compat.v1.placeholder(tf.int32, [None, 6], name="ids")
      table = tf.compat.v1.get_variable("table", [5000, 8])
      hidden, mask = tf.nn.embedding_lookup(table, ids), tf.not_equal(ids, 0)
    else:
      hidden = tf.compat.v1.placeholder(tf.float32, [None, 6, 8], name="x")
      mask = hidden[:, :, 0] > 0
    errors = tf.reduce_sum(tf.square(hidden @ tf.compat.v1.get_variable("w", [8, 4]) - 1.0), 2)
    mask = tf.ones_like(errors) if full else tf.cast(mask, tf.float32)
    loss = tf.reduce_sum(errors * mask) / tf.reduce_sum(mask)
    tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  return ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})


@pytest.mark.parametrize("of_ids", (True, False))
def test_masks_of_padding_and_of_signs_leave_something_out(of_ids):
  right, wrong = by_mask(of_ids, False), by_mask(of_ids, True)
  assert compare_training(right.graph, right.replicas(2)).steps == 5
  with pytest.raises(ReplicaMismatchError):
    compare_training(right.graph, wrong.replicas(2))


@pytest.mark.parametrize("checked", (False, True))
def test_what_takes_no_negative_numbers_is_given_none(checked):
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    x, y = constructs.inputs()
    logs = tf.math.log(x + 0.1)
    logs = tf.debugging.check_numerics(logs, "no logarithm") if checked else logs
    constructs.finish(constructs.square_error(constructs.network(logs), y))
    tf.compat.v1.global_variables_initializer()
  source = ReplicaSource(graph, {"fetches": ["train"], "batch_size": BATCH})
  found = compare_training(source.graph, source.replicas(2))
  assert found.checked and found.steps == 5, found


def wrong_by(factor, rate=0.1, act="tanh"):
  """Two layers, of the first of which the gradient is multiplied."""
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    hidden = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
    first = tf.compat.v1.get_variable("first", initializer=tf.fill([8, 8], 0.1))
    last = tf.compat.v1.get_variable("last", initializer=tf.fill([8, 2], 0.1))
    act = {"tanh": tf.tanh, "none_positive": lambda x: tf.nn.relu(-1.0 - tf.abs(x))}[act]
    loss = tf.reduce_mean(tf.square(act(hidden @ first) @ last - 1.0))
    gradients = tf.gradients(loss, [first, last])
    step = tf.compat.v1.train.GradientDescentOptimizer(rate).apply_gradients(
        [(factor * gradients[0], first), (gradients[1], last)])
    tf.group(step, name="train")
  return ReplicaSource(graph, {"fetches": ["train", loss.name], "batch_size": BATCH})


@pytest.mark.parametrize("rate", (1e-4, 1e-7, 1e-10))
def test_what_changes_by_little_may_differ_by_little(rate):
  right, wrong = wrong_by(1.0, rate), wrong_by(1.2, rate)
  found = compare_training(right.graph, right.replicas(2))
  assert found.checked and (found.steps, found.untold) == (5, 0), found
  with pytest.raises(ReplicaMismatchError, match="'first'"):
    compare_training(right.graph, wrong.replicas(2))


def test_a_graph_whose_variables_no_step_changes_is_not_checked():
  source = wrong_by(1.0, act="none_positive")
  found = compare_training(source.graph, source.replicas(2))
  assert str(found).startswith("not checked: no step changes a variable by more than")


@pytest.mark.parametrize("kept", (0.15, 0.85))
def test_masks_that_are_drawn_are_full_once_and_empty_once(kept):
  """A loss that a masked language model has; `kept` is the mask's mean."""
  import tensorflow as tf

  def masked(reduce):
    graph = tf.Graph()
    with graph.as_default():
      x, y = constructs.inputs()
      errors = constructs.by_example(constructs.network(x), y)
      mask = tf.cast(tf.random.uniform(tf.shape(errors)) < kept, tf.float32)
      constructs.finish(reduce(errors * mask))
    return ReplicaSource(graph, {"fetches": ["train"], "batch_size": BATCH})

  right, wrong = masked(tf.reduce_mean), masked(tf.reduce_sum)
  assert compare_training(right.graph, right.replicas(2)).checked
  with pytest.raises(ReplicaMismatchError):
    compare_training(right.graph, wrong.replicas(2))


def test_a_variable_that_is_written_in_a_later_step_tells_nothing():
  source = built("loss_kept_in_a_branch_that_is_not_taken")
  found = compare_training(source.graph, source.replicas(2))
  assert found.checked and (found.variables, found.untold) == (8, 1), found
