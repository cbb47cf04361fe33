"""Which choices each of Placeto's methods runs with."""

import dataclasses

import numpy as np
import pytest

from placeto_tf.policies.placeto import placers
from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.weights import PlacetoWeights
from placeto_tf.problem.budget import Budget
from random_problem import random_problem


@pytest.fixture(name="asked")
def asked_fixture(monkeypatch):
  """What `improve` is called with, which runs nothing."""
  found = {}

  def improve(problem, start, budget, seed=0, **options):
    found.update(options, start=start)
    return dataclasses.make_dataclass("Found", ["op_placement"])(problem.account.best_known)

  monkeypatch.setattr(placers, "improve", improve)
  return found


@pytest.fixture(name="problem")
def problem_fixture():
  problem = random_problem()
  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1).astype(np.int32))
  return problem


@pytest.mark.parametrize("way, start, learns, pretrained", [
    ("zero_shot", "best", False, True), ("fine_tune", "best", True, True),
    ("from_scratch", "random", True, False), ("untrained", "best", False, False)])
def test_searches_start_from_the_best_so_far_and_from_scratch_as_in_training(
    monkeypatch, asked, problem, way, start, learns, pretrained):
  class Trained:
    config, arrays = PlacetoConfig.tied(), ["weights"]

    def check(self, devices):
      assert devices == problem.num_devices

  monkeypatch.setattr(placers.PlacetoWeights, "load", lambda directory: Trained())
  placers.improve_with("run", way, problem, problem.account.best_known, Budget(max_evaluations=10))
  config = asked["config"]
  assert (config.environment.start, config.learn) == (start, learns)
  assert asked["weights"] == (Trained.arrays if pretrained else None)


@pytest.mark.parametrize("way, policy", [("untrained", "placeto"), ("random", "random")])
def test_controls_are_the_process_of_placeto_without_learning(asked, problem, way, policy):
  found = placers.place_without_learning(problem, Budget(max_evaluations=10), 0, way=way)
  assert asked["config"] == dataclasses.replace(PlacetoConfig(), learn=False)
  assert asked["policy"] == policy
  np.testing.assert_array_equal(found, problem.account.best_known)


def test_controls_with_weights_are_the_process_of_their_training_run(asked, problem, tmp_path):
  config = PlacetoConfig.tied()
  PlacetoWeights(tuple(), config, problem.num_devices, 48).save(str(tmp_path))
  placers.place_without_learning(
      problem, Budget(max_evaluations=10), 0, way="random", weights=str(tmp_path))
  assert asked["config"].network == config.network and not asked["config"].learn
  assert asked["policy"] == "random" and asked["weights"] is None
