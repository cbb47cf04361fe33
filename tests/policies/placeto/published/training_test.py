import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.network import NetworkConfig
from placeto_tf.policies.placeto.published.placers import place
from placeto_tf.policies.placeto.published.training import (
  PublishedTraining,
  PublishedTrainingConfig,
  train,
)
from placeto_tf.policies.placeto.published.weights import PublishedWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.training.placement_environment import EnvironmentConfig
from placeto_tf.training.problems import StartedProblem
from placeto_tf.training.trainer import Trainer
from random_problem import random_problem

CONFIG = PublishedTrainingConfig(
    graphs=("a", "b"), max_groups=5, iterations=6, checkpoint_every=2,
    watch_every=3,
    placeto=PublishedConfig(
        environment=EnvironmentConfig(num_episodes=2, start="best", order="random"),
        network=NetworkConfig(rounds=1, width=3)))


def problems():
  found = []
  for groups in (3, 4):
    problem = random_problem(num_ops=20, num_groups=groups, devices="k80:2", seed=groups)
    start = problem.allowed.argmax(axis=1).astype(np.int32)
    found.append(StartedProblem(f"random[{groups}]", problem, start[None]))
  return found


def trainer(root_dir, config=CONFIG, **options):
  return Trainer(
      PublishedTraining, config, str(root_dir), problems=problems(), held_out=problems()[:1],
      **options)


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
  run = trainer(root_dir)
  figures = run.run(progress=lambda iteration, _: seen.append(iteration))
  return run, root_dir, figures, seen


def test_a_run_learns_from_every_graph_writes_its_weights_and_says_that_it_is_done(whole):
  _, root_dir, figures, seen = whole
  assert seen == [1, 2, 3, 4, 5, 6]
  assert figures["held_out_last"] > 0 and np.isfinite(figures["loss"])
  assert json.loads((root_dir / "done.json").read_text())["iterations"] == 6
  assert {"Metrics/last", "Metrics/returns", "Metrics/loss", "Metrics/entropy",
          "Metrics/steps_a_second", "Metrics/held_out_best"} <= tags(root_dir / "train")
  assert train(CONFIG, str(root_dir)) == figures  # done: "a" and "b" are no graphs


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


def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bits(tmp_path, eagerly, unsaved):
  config = dataclasses.replace(CONFIG, iterations=4)
  whole = trainer(tmp_path / "whole", config)
  whole.run()
  stopped = trainer(tmp_path / "parts", config)
  stopped.run(until=0)
  assert tf.train.latest_checkpoint(str(tmp_path / "parts" / "train")) is not None
  stopped.run(until=3)  # the last checkpoint is of iteration 2: the third is done again
  resumed = trainer(tmp_path / "parts", config)
  assert resumed.iteration == 2
  resumed.run()
  for one, other in zip(whole.learner.variables, resumed.learner.variables):
    np.testing.assert_array_equal(one.numpy(), other.numpy())
  assert whole.learner.state() == resumed.learner.state()
  of_the_network = {id(each) for each in whole.learner.learner.network.variables}
  assert of_the_network <= {id(each) for each in whole.learner.variables}  # NaN is undone in these


def test_every_graph_has_its_turn_before_one_has_its_second():
  run = PublishedTraining.__new__(PublishedTraining)
  run.config, run.num_training, run.at_once = CONFIG, 6, 2
  laps = [sum((run.turn(lap * 3 + i) for i in range(1, 4)), []) for lap in range(4)]
  assert all(sorted(lap) == [0, 1, 2, 3, 4, 5] for lap in laps)
  assert laps[0] != laps[1] or laps[1] != laps[2]


def test_another_configuration_does_not_resume_and_graphs_too_large_are_refused(
    tmp_path, eagerly):
  trainer(tmp_path / "run")
  with pytest.raises(PlacetoError, match="seed=0, now it is 1; choose another root_dir"):
    trainer(tmp_path / "run", dataclasses.replace(CONFIG, seed=1))
  with pytest.raises(PlacetoError, match="graph 1 has 4 groups, there is room for 3"):
    trainer(tmp_path / "small", dataclasses.replace(CONFIG, max_groups=3))


def test_the_weights_serve_another_graph_and_a_new_run_and_no_other_network(
    tmp_path, eagerly, unsaved):
  run = trainer(tmp_path / "run")
  run.save()
  weights = PublishedWeights.load(str(tmp_path / "run"))
  assert weights.config == CONFIG.placeto
  warm = trainer(tmp_path / "warm", warm_start=str(tmp_path / "run"))
  for one, other in zip(weights.arrays, warm.learner.weights):
    np.testing.assert_array_equal(one, other)
  wider = dataclasses.replace(
      CONFIG, placeto=dataclasses.replace(
          CONFIG.placeto, network=dataclasses.replace(CONFIG.placeto.network, width=4)))
  with pytest.raises(PlacetoError, match="the weights are of another network"):
    trainer(tmp_path / "wider", wider, warm_start=str(tmp_path / "run"))

  problem = random_problem(num_ops=30, num_groups=6, devices="k80:2", seed=9)
  start_us = problem.evaluate_ops(problem.allowed_ops.argmax(axis=1)).objective_us[0]
  place(problem, Budget(40), way="zero_shot", weights=str(tmp_path / "run"))
  assert problem.search_log.evaluations <= 40
  assert problem.search_log.best_objective_us <= start_us

  other = random_problem()  # on three GPUs and a host
  other.evaluate_ops(other.allowed_ops.argmax(axis=1))
  with pytest.raises(PlacetoError, match="are for clusters of 3 devices"):
    place(other, Budget(100), way="zero_shot", weights=str(tmp_path / "run"))


def test_what_is_no_directory_of_weights_is_named(tmp_path):
  with pytest.raises(PlacetoError, match="cannot read the description of weights"):
    PublishedWeights.load(str(tmp_path))


@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"max_groups": 0}])
def test_wrong_settings_are_refused(wrong):
  with pytest.raises(PlacetoError, match=next(iter(wrong))):
    dataclasses.replace(CONFIG, **wrong)
