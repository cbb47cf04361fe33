import dataclasses
import json

import numpy as np
import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto.episodes import Episode, PlacetoTrainingConfig, target
from placeto_tf.policies.placeto.scorer import ScorerWeights
from placeto_tf.policies.placeto.training import PlacetoTraining
from placeto_tf.training.problems import with_starts
from placeto_tf.training.trainer import Trainer
from random_problem import random_problem

pytestmark = pytest.mark.usefixtures("eager_module")

CONFIG = PlacetoTrainingConfig(
    graphs=("a", "b"), clusters=("k80:3",), iterations=5, checkpoint_every=2, watch_every=3,
    width=8, steps=3, batch=32, rounds=1, levels=(0.5, 1.0), states=2, moves=6)


def problems():
  return [with_starts(random_problem(num_ops=80, num_groups=16, devices=text, seed=i))
          for i, text in enumerate(("k80:3", "p100:2+k80:2"))]


def trainer(root_dir, config=CONFIG, **options):
  return Trainer(
      PlacetoTraining, config, str(root_dir), problems=problems(), held_out=problems()[:1], **options)


def test_the_target_is_the_root_of_the_gain_and_nothing_for_what_loses():
  np.testing.assert_allclose(
      target(np.array([-0.5, 0.0, 0.005, 0.02, 1.0])), [0, 0, 0.5, 1, 2**0.5], rtol=1e-6)


def test_moves_are_half_the_best_ones_and_their_targets_what_simulation_says():
  problem = random_problem(num_ops=80, num_groups=16)
  search = Episode(problem, np.zeros(80, np.int32), ScorerWeights.untrained())
  search.regroup(16)
  before_us, groups = search.objective_us, search.groups.copy()
  movable = search.tables.movable
  features = search.state.features(movable)
  found, targets, moved = search.simulate_moves(8, 0.0, np.random.default_rng(0))
  gains = {}
  for i, group in enumerate(movable):
    for device in np.flatnonzero(search.tables.allowed[group]):
      if device != groups[group]:
        proposed = groups.copy()
        proposed[group] = device
        us = problem.evaluate_ops(search.level.grouping.expand(proposed)).objective_us[0]
        gains[features[i, device].tobytes()] = target(np.log(before_us / us))
  assert len(found) == len(targets) == 8
  for row, value in zip(found, targets):
    assert gains[row.tobytes()] == pytest.approx(value, abs=1e-6)
  assert moved == bool((targets > 0).any()) == (search.objective_us < before_us)
  assert problem.evaluate_ops(search.placement).objective_us[0] == search.objective_us


def test_a_run_learns_writes_weights_of_gains_and_says_that_it_is_done(tmp_path):
  run = trainer(tmp_path)
  first = run.learner.weights
  figures = run.run()
  assert np.isfinite(figures["loss"]) and 0 < figures["held_out_ratio"] <= 1
  assert json.loads((tmp_path / "done.json").read_text())["iterations"] == 5
  weights = ScorerWeights.load(str(tmp_path))
  assert weights.output.shape == (8,) and not np.array_equal(weights.output, first.output)


def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bits(tmp_path):
  whole = trainer(tmp_path / "whole")
  whole.run()
  trainer(tmp_path / "parts").run(until=3)  # the last checkpoint is of iteration 2
  resumed = trainer(tmp_path / "parts")
  assert resumed.iteration == 2
  resumed.run()
  for one, other in zip(whole.learner.weights.arrays, resumed.learner.weights.arrays):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("damage, said", [
    (lambda path: path.write_bytes(path.read_bytes()[:100]), "is damaged"),
    (lambda path: path.unlink(), "cannot read the moves"),
    (lambda path: np.savez(path, features=np.zeros((3, 2), np.float32)), "something else")])
def test_damaged_moves_are_an_error_with_a_remedy(tmp_path, damage, said):
  trainer(tmp_path / "run").run(until=2)
  damage(tmp_path / "run" / "moves" / "00001.npz")
  with pytest.raises(PlacetoError, match=f"{said}.*choose another root_dir"):
    trainer(tmp_path / "run")


def test_regression_finds_what_the_gain_is_made_of(tmp_path):
  learner = trainer(
      tmp_path, dataclasses.replace(CONFIG, steps=25, batch=128, learning_rate=2e-2)).learner
  rng = np.random.default_rng(0)
  features = rng.normal(size=(2000, len(learner.weights.hidden_1))).astype(np.float32)
  targets = np.maximum(features[:, 3], 0)
  for iteration in (1, 2):
    loss = learner.learn([(features, targets)], iteration)["loss"]
  assert loss < 0.5 * targets.var()


@pytest.mark.parametrize("wrong", [
    {"iterations": 0}, {"moves": 0}, {"levels": ()}, {"learning_rate": 0.0}])
def test_wrong_settings_are_refused(wrong):
  with pytest.raises(PlacetoError, match=next(iter(wrong))):
    dataclasses.replace(CONFIG, **wrong)
