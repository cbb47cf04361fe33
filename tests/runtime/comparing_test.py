"""`compare_training`: what it compares, what it catches, and when it does not run."""

import dataclasses
import time

import numpy as np
import pytest
import tensorflow as tf
import training_constructs as constructs
from unhurried import compare_training

from placeto_tf.errors import ReplicaMismatchError
from placeto_tf.graphs import load_graph
from placeto_tf.replication import axis_rules, propagation, replicate
from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.replication.specs import Partial, Replicated
from placeto_tf.runtime import trained_pair
from placeto_tf.runtime.trainable_graph import NotRunnable

BATCH = 8


def built(name):
  return constructs.source(name, BATCH)


@pytest.mark.parametrize("mirrored", (False, True))
def test_it_says_what_was_compared(mirrored):
  source = built("mean_loss")
  found = compare_training(source.graph, source.replicas(2, mirrored), steps=3)
  assert found.checked and (found.steps, found.variables, found.fetches) == (3, 6, 1)
  assert 0 <= found.largest_difference < 1e-5 and found.seconds > 0
  assert str(found).startswith("checked: 3 steps, 6 variables, largest difference ")


def half_precision(dtype):
  """The loss of a network in 16 bits, a mean over the examples that a mask leaves, scaled."""
  x, y = constructs.inputs()
  v1 = tf.compat.v1
  with v1.variable_scope("half", dtype=dtype):
    h = tf.nn.relu(tf.cast(x, dtype) @ v1.get_variable("one", [x.shape[1], 8]))
    out = h @ v1.get_variable("two", [8, y.shape[1]])
  mask = tf.cast(y[:, :1] > 0.0, dtype)
  error = tf.reduce_sum(mask * tf.square(out - tf.cast(y, dtype))) / tf.reduce_sum(mask)
  optimizer = v1.train.GradientDescentOptimizer(0.1)
  gradients = optimizer.compute_gradients(tf.cast(error, tf.float32) * 128.0)
  optimizer.apply_gradients([(each / 128.0, of) for each, of in gradients], name="train")
  v1.global_variables_initializer()


def in_single_precision_alone(graph, replicated, size):
  if size > 1.0:
    raise NotRunnable("an op has no double precision")


def plant(monkeypatch, rule, op_type, wrong):
  """Partial results of a type of op get another spec than by the rule."""
  right = getattr(propagation.AxisRules, rule)

  def planted(self, op, kinds):
    found = right(self, op, kinds)
    return wrong if isinstance(found, Partial) else found

  monkeypatch.setitem(axis_rules._RULES, op_type, planted)


@pytest.mark.parametrize("dtype, fault, double", [
    ("float16", "none", True), ("bfloat16", "none", False), ("float16", "mean", False),
    ("bfloat16", "mean", True), ("float16", "mask", True), ("bfloat16", "mask", False)])
def test_a_fault_in_16_bits_is_caught_and_roundings_are_none(monkeypatch, dtype, fault, double):
  """Gradients are averaged instead of added up, or each replica has its own mask's sum."""
  with tf.Graph().as_default() as graph:
    half_precision(dtype)
  source = ReplicaSource(graph, {"fetches": ["train"], "batch_size": BATCH})
  plant(monkeypatch, *{
      "none": ("_reduce", "Sum", Partial("sum")), "mask": ("_reduce", "Sum", Replicated()),
      "mean": ("_contract", "MatMul", Partial("sum", 1.0))}[fault])
  replicated = replicate(source.part(2), 2, whole=source.graph)
  if not double:  # as where an op has no kernel for it
    monkeypatch.setattr(trained_pair, "check_memory", in_single_precision_alone)
  if fault == "none":
    found = compare_training(source.graph, replicated)
    assert found.checked and not found.untold and found.largest_difference < 1e-4
  else:
    with pytest.raises(ReplicaMismatchError):
      compare_training(source.graph, replicated)


@pytest.mark.parametrize("wrong, name, op_type", [
    # A sum that is taken for a value that all replicas share, as in a loss without a mean.
    (Replicated(0.0), "sum_loss", "Sum"),
    # A maximum that is added up.
    (Partial("sum"), "largest_error", "Max"),
    # A mean of whose exponent the analysis is wrong.
    (Partial("sum", 0.0), "mean_loss", "Mean"),
])
def test_a_wrong_kind_is_caught(monkeypatch, wrong, name, op_type):
  """Reductions over the batch are given another kind than they have."""
  source = built(name)
  part = source.part(2)
  plant(monkeypatch, "_reduce", op_type, wrong)
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


@pytest.mark.parametrize("name", (
    "attention_over_sequences_of_their_own_lengths", "decoder_that_looks_up_rows_in_its_loop"))
def test_arrays_of_old_loops_are_compared_in_double_precision(name):
  source = built(name)
  double = trained_pair.TrainedPair(source.graph, source.replicas(2), double=True)
  double.begin(0)
  double.close()
  assert compare_training(source.graph, source.replicas(2), 2).largest_difference < 1e-12


def test_a_step_that_takes_too_long_is_said():
  source = built("mean_loss")
  found = compare_training(source.graph, source.replicas(2), time_limit_s=0.0)
  assert not found.checked and "takes more than 0 s" in str(found)


def test_after_half_of_the_time_no_further_step_begins():
  source = built("mean_loss")
  found = compare_training(
      source.graph, source.replicas(2), time_limit_s=1000.0, started=time.monotonic() - 501.0)
  assert found.checked and found.steps == 1  # what has been done counts
  assert found.left_out == "not tried whether each of 8 examples changes anything"
  assert found.left_out in str(found)


def test_an_op_that_does_not_run_here_is_no_fault_of_the_replicas():
  with tf.Graph().as_default() as graph:
    x, y = constructs.inputs()
    with tf.control_dependencies([tf.debugging.assert_less(x, -100.0)]):
      constructs.finish(constructs.square_error(constructs.network(x), y))
    tf.compat.v1.global_variables_initializer()
  source = ReplicaSource(graph, {"fetches": ["train"], "batch_size": BATCH})
  found = compare_training(source.graph, source.replicas(2))
  assert not found.checked and "does not run on this machine" in found.reason
  assert "\n" not in found.reason


@pytest.mark.parametrize("inner, outer, mirrored", [
    (2, 2, True), (3, 2, False), (2, 4, True)])
def test_replicas_of_replicas_train_what_the_graph_trains(inner, outer, mirrored):
  """Micro-batches in data parallelism: the inner sum is taken before the outer one."""
  with tf.Graph().as_default() as graph:
    fetches = constructs.CONSTRUCTS["masked"]()
  options = {"fetches": ["train", *(each.name for each in fetches)]}
  examples = 4 * inner * outer
  part = ReplicaSource(graph, {**options, "batch_size": examples // outer}).replicas(inner)
  replicated = replicate(part.graph, outer, mirrored=mirrored)
  assert (part.global_batch, replicated.global_batch) == (examples // outer, examples)
  found = compare_training(
      load_graph(graph, **options, batch_size=examples), replicated, steps=3)
  assert found.checked and found.largest_difference < 1e-5, found


def test_a_variable_that_is_written_in_a_later_step_tells_nothing():
  source = built("loss_kept_in_a_branch_that_is_not_taken")
  found = compare_training(source.graph, source.replicas(2))
  assert found.checked and (found.variables, found.untold) == (8, 1), found
