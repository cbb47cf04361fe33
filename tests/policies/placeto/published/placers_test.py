"""Which choices each of Placeto's methods runs with."""

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

  monkeypatch.setattr(placers, "improve", improve)
  return found


@pytest.fixture(name="problem")
def problem_fixture():
  problem = random_problem()
  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1).astype(np.int32))
  return problem


@pytest.mark.parametrize("way, learns, pretrained", [
    ("zero_shot", False, True), ("fine_tune", True, True), ("untrained", False, False)])
def test_searches_with_weights_start_from_the_best_so_far(
    monkeypatch, asked, problem, way, learns, pretrained):
  class Trained:
    config, arrays = PlacetoConfig.tied(), ["weights"]

    def check(self, devices):
      assert devices == problem.num_devices

  monkeypatch.setattr(placers.PlacetoWeights, "load", lambda directory: Trained())
  placers.place(problem, Budget(max_evaluations=10), way=way, weights="run")
  assert (asked["config"].environment.start, asked["learns"]) == ("best", learns)
  assert asked["start"].tolist() == problem.project(problem.account.best_known).tolist()
  assert asked["weights"] == (Trained.arrays if pretrained else None)


@pytest.mark.parametrize("way, uniform", [("untrained", False), ("random", True)])
def test_controls_are_the_process_of_placeto_without_learning(asked, problem, way, uniform):
  found = placers.place(problem, Budget(max_evaluations=10), 0, way=way)
  assert asked["config"] == PlacetoConfig() and not asked["learns"]
  assert asked["uniform"] == uniform
  np.testing.assert_array_equal(found, problem.account.best_known)


def test_controls_with_weights_are_the_process_of_their_training_run(asked, problem, tmp_path):
  config = PlacetoConfig.tied()
  PlacetoWeights(tuple(), config, problem.num_devices, 48).save(str(tmp_path))
  placers.place(problem, Budget(max_evaluations=10), 0, way="random", weights=str(tmp_path))
  assert asked["config"].network == config.network and not asked["learns"]
  assert asked["uniform"] and asked["weights"] is None
