"""Which choices each of Placeto's methods runs with."""

import numpy as np
import pytest

from placeto_tf.policies.placeto.published import placers
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.weights import PublishedWeights
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


@pytest.mark.parametrize("way, learns, uniform, pretrained", [
    ("zero_shot", False, False, True), ("fine_tune", True, False, True),
    ("random", False, True, False)])
def test_searches_with_weights_run_the_process_of_their_training_from_the_best_so_far(
    asked, problem, tmp_path, way, learns, uniform, pretrained):
  config = PublishedConfig(entropy=0.5, final_entropy=0.25)
  PublishedWeights((np.ones(2),), config, problem.num_devices, 48).save(str(tmp_path))
  found = placers.place(problem, Budget(max_evaluations=10), way=way, weights=str(tmp_path))
  assert (asked["config"].environment.start, asked["learns"]) == ("best", learns)
  assert asked["config"].entropy == (0.25 if learns else 0.5)
  assert asked["start"].tolist() == problem.project(problem.search_log.best_known).tolist()
  assert asked["uniform"] == uniform and (asked["weights"] is not None) == pretrained
  np.testing.assert_array_equal(found, problem.search_log.best_known)


def test_without_weights_it_learns_from_scratch(asked, problem):
  placers.place(problem, Budget(max_evaluations=10))
  assert asked["learns"] and asked["weights"] is None
  assert asked["config"].network == PublishedConfig().network
