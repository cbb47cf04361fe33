"""The loop that trains a graph trains its replicas: feeds, fetches, hooks, checkpoints."""

import numpy as np
import pytest
import tensorflow as tf
import training_constructs as constructs

from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.replication.batches import ReplicaSource

v1 = tf.compat.v1
BATCH = 12


def build(batch=None):
  graph = tf.Graph()
  with graph.as_default():
    v1.set_random_seed(3)
    x, y = constructs.inputs(batch)
    step = v1.train.get_or_create_global_step()
    loss = tf.identity(constructs.square_error(constructs.network(x), y), name="loss")
    v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step, name="train")
    v1.train.Saver(name="saver")
    v1.global_variables_initializer()
  return graph


def replicas_of(graph, mirrored):
  source = ReplicaSource(
      load_graph(graph, fetches=["train", "loss:0"], batch_size=BATCH))
  return source.replicas(2, mirrored).graph.source.tf_graph


def batch(step):
  generator = np.random.default_rng(step)
  return {"x:0": generator.normal(size=[BATCH, 5]), "y:0": generator.normal(size=[BATCH, 3])}


def monitored(graph, folder, steps):
  """Losses of a MonitoredTrainingSession that begins where the folder's checkpoint is."""
  with graph.as_default():
    hooks = [v1.train.StopAtStepHook(last_step=steps), v1.train.NanTensorHook("loss:0")]
    losses = []
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=str(folder), hooks=hooks, save_checkpoint_steps=1,
        save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None) as session:
      while not session.should_stop():
        at = int(session.run_step_fn(
            lambda step_context: step_context.session.run(
                v1.train.get_global_step(graph))))
        losses.append(float(session.run(["train", "loss:0"], batch(at))[1]))
  return losses


@pytest.mark.parametrize("mirrored", (False, True))
def test_a_monitored_session_trains_either_and_goes_on_from_the_other_s_checkpoint(
    tmp_path, mirrored):
  whole = monitored(build(), tmp_path / "whole", 6)
  first = monitored(build(), tmp_path / "both", 2)
  middle = monitored(replicas_of(build(), mirrored), tmp_path / "both", 4)
  last = monitored(build(), tmp_path / "both", 6)
  assert len(middle) == 2
  np.testing.assert_allclose([*first, *middle, *last], whole, rtol=1e-5)


def losses(graph, *feeds):
  """The loss before each of some steps of a plain session."""
  with v1.Session(graph=graph) as session:
    session.run("init")
    return [session.run(["train", "loss:0"], feed)[1] for feed in feeds]


@pytest.mark.parametrize("mirrored", (False, True))
@pytest.mark.parametrize("size", (None, BATCH))
def test_a_plain_session_with_the_feeds_of_the_original(size, mirrored):
  graph, feeds = replicas_of(build(size), mirrored), [batch(step) for step in range(3)]
  assert graph.get_tensor_by_name("x:0").shape[0] == size  # a fixed batch is kept
  np.testing.assert_allclose(losses(graph, *feeds), losses(build(size), *feeds), rtol=1e-5)


def test_a_smaller_last_batch_is_divided_too():
  feeds = [{name: value[:size] for name, value in batch(size).items()} for size in (BATCH, 8, 2)]
  np.testing.assert_allclose(
      losses(replicas_of(build(), False), *feeds), losses(build(), *feeds), rtol=1e-5)


def test_a_batch_that_does_not_divide_is_an_error_that_says_so():
  with v1.Session(graph=replicas_of(build(), False)) as session:
    session.run("init")
    feed = {name: value[:7] for name, value in batch(0).items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match="evenly divide.*size = 7.*2"):
      session.run("train", feed)


def test_a_part_can_be_fed_by_itself():
  feed = batch(0)
  parts = {f"replica_{r}/{name}": value[6 * r:6 * r + 6]
           for r in range(2) for name, value in feed.items()}
  found = [losses(replicas_of(build(), False), given) for given in (feed, parts)]
  np.testing.assert_allclose(*found, rtol=1e-6)


def test_a_fixed_batch_of_a_live_graph_that_does_not_divide_is_refused():
  source = ReplicaSource(load_graph(build(), fetches=["train"], batch_size=7))
  with pytest.raises(GraphError, match="7"):
    source.replicas(2)
