import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from training_runs import PUBLISHED, published

from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto.published.search import place
from placeto_tf.policies.placeto.published.training import trainable
from placeto_tf.policies.placeto.published.weights import PublishedWeights
from placeto_tf.problem.budget import Budget
from random_problem import random_problem


def tags(directory):
  found = set()
  for path in directory.glob("events*"):
    for record in tf.data.TFRecordDataset(str(path)):
      found.update(
          value.tag for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value)
  return found


@pytest.fixture(name="whole", scope="module")
def whole_fixture(tmp_path_factory):
  """A run from its beginning to its end, its directory and what it reported."""
  root_dir, seen = tmp_path_factory.mktemp("whole"), []
  run = published(root_dir)
  figures = run.run(progress=lambda iteration, _: seen.append(iteration))
  return run, root_dir, figures, seen


def test_a_run_learns_from_every_graph_writes_its_weights_and_says_that_it_is_done(whole):
  _, root_dir, figures, seen = whole
  assert seen == [1, 2, 3, 4, 5, 6]
  assert figures["held_out_last"] > 0 and np.isfinite(figures["loss"])
  assert json.loads((root_dir / "done.json").read_text())["iterations"] == 6
  assert {"Metrics/last", "Metrics/returns", "Metrics/loss", "Metrics/entropy",
          "Metrics/steps_a_second", "Metrics/held_out_best"} <= tags(root_dir / "train")
  assert trainable().train(PUBLISHED, str(root_dir)) == figures  # done: "a" and "b" are no graphs


def test_the_saved_model_acts_like_the_policy_of_likeliest_devices(whole):
  run, root_dir, _, _ = whole
  loaded = tf.saved_model.load(str(root_dir / "policies" / "greedy_policy"))
  for environment in run.learner._environments:  # the observations it was trained on
    time_step = environment.reset()
    for _ in range(3):
      action = loaded.action(tf.nest.map_structure(tf.constant, time_step)).action.numpy()
      np.testing.assert_array_equal(
          action, run.learner.learner.logits(time_step.observation).argmax(axis=-1))
      time_step = environment.step(action)


def test_the_weights_serve_another_graph_and_a_new_run_and_no_other_network(
    tmp_path, eagerly, unsaved):
  published(tmp_path / "run").save()
  weights = PublishedWeights.load(str(tmp_path / "run"))
  assert weights.config == PUBLISHED.placeto
  warm = published(tmp_path / "warm", warm_start=str(tmp_path / "run"))
  for one, other in zip(weights.arrays, warm.learner.weights):
    np.testing.assert_array_equal(one, other)
  wider = dataclasses.replace(
      PUBLISHED, placeto=dataclasses.replace(
          PUBLISHED.placeto, network=dataclasses.replace(PUBLISHED.placeto.network, width=4)))
  with pytest.raises(PlacetoError, match="the weights are of another network"):
    published(tmp_path / "wider", wider, warm_start=str(tmp_path / "run"))

  problem = random_problem(num_ops=30, num_groups=6, devices="k80:2", seed=9)
  start_us = problem.evaluate_ops(problem.allowed_ops.argmax(axis=1)).objective_us[0]
  place(problem, Budget(12), way="zero_shot", weights=str(tmp_path / "run"))
  assert problem.search_log.evaluations <= 12
  assert problem.search_log.best_objective_us <= start_us

  other = random_problem()  # on three GPUs and a host
  other.evaluate_ops(other.allowed_ops.argmax(axis=1))
  with pytest.raises(PlacetoError, match="are for clusters of 3 devices"):
    place(other, Budget(100), way="zero_shot", weights=str(tmp_path / "run"))
