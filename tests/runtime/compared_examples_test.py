"""Examples of a comparison show what masks leave out, and what random ops do."""

import pytest
import tensorflow as tf
import training_constructs as constructs
from unhurried import compare_training

from placeto_tf.errors import ReplicaMismatchError
from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.runtime import training_memory

BATCH = 8


def by_mask(of_ids, full):
  """A mean over what a mask leaves; `full`: as if it left everything."""
  with tf.Graph().as_default() as graph:
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
  with tf.Graph().as_default() as graph:
    x, y = constructs.inputs()
    logs = tf.math.log(x + 0.1)
    logs = tf.debugging.check_numerics(logs, "no logarithm") if checked else logs
    constructs.finish(constructs.square_error(constructs.network(logs), y))
    tf.compat.v1.global_variables_initializer()
  source = ReplicaSource(graph, {"fetches": ["train"], "batch_size": BATCH})
  found = compare_training(source.graph, source.replicas(2))
  assert found.checked and found.steps == 5, found


@pytest.mark.parametrize("kept", (0.15, 0.85))
def test_masks_that_are_sampled_are_full_once_and_empty_once(kept):
  """A loss that a masked language model has; `kept` is the mask's mean."""
  def masked(reduce):
    with tf.Graph().as_default() as graph:
      x, y = constructs.inputs()
      errors = constructs.by_example(constructs.network(x), y)
      mask = tf.cast(tf.random.uniform(tf.shape(errors)) < kept, tf.float32)
      constructs.finish(reduce(errors * mask))
    return ReplicaSource(graph, {"fetches": ["train"], "batch_size": BATCH})

  right, wrong = masked(tf.reduce_mean), masked(tf.reduce_sum)
  assert compare_training(right.graph, right.replicas(2)).checked
  with pytest.raises(ReplicaMismatchError):
    compare_training(right.graph, wrong.replicas(2))


def test_examples_that_the_step_does_not_use_are_said():
  source = constructs.source("first_half_by_positions", 8)
  found = compare_training(source.graph, source.replicas(2), 3)
  assert found.ignored == (4, 5, 6, 7) and "unused examples: 5, 6, 7 and 1 more" in str(found)


def test_a_step_that_uses_no_example_is_not_checked():
  with tf.Graph().as_default() as graph:
    x, y = constructs.inputs()
    errors = constructs.by_example(constructs.network(x), y) * tf.cast(x[:, 0] > 9.0, tf.float32)
    decay = tf.add_n([tf.nn.l2_loss(each) for each in tf.compat.v1.trainable_variables()])
    constructs.finish(tf.reduce_mean(errors) + 0.1 * decay)
  source = ReplicaSource(graph, {"fetches": ["train"], "batch_size": BATCH})
  found = compare_training(source.graph, source.replicas(2), 2)
  assert str(found) == "not checked: no example changes anything that the step computes"


def test_variables_that_do_not_fit_into_memory_are_not_trained(monkeypatch):
  import tensorflow as tf

  with tf.Graph().as_default() as graph:
    constructs.CONSTRUCTS["mean_loss"]()
  source = ReplicaSource(graph, {"fetches": ["train"], "batch_size": 8})
  monkeypatch.setattr(training_memory, "_free_bytes", lambda: 100.0)
  found = compare_training(source.graph, source.replicas(2))
  assert not found.checked and "of memory" in str(found)
