import numpy as np
import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.placing import registry, running
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.policies.baselines.gdp import PpoConfig, save_weights, search_gdp
from placeto_tf.policies.baselines.gdp_network import GdpConfig, GdpNetwork
from placeto_tf.problem.budget import Budget
from random_problem import means_of_samples, random_problem

NETWORK = GdpConfig(max_devices=5, width=16, rounds=2, layers=1, heads=2, segment=16)
SMALL = {"network_config": NETWORK, "training": PpoConfig(batch_size=8, learning_rate=1e-2)}


@pytest.fixture(name="weights", scope="module")
def weights_fixture(tmp_path_factory):
  """A run's directory with weights in it, untrained."""
  root_dir = tmp_path_factory.mktemp("run")
  save_weights(GdpNetwork(NETWORK, seed=5), str(root_dir / "weights"))
  return str(root_dir)


def test_two_chains_are_put_on_two_devices_and_late_samples_are_better_than_first_ones(two_chains):
  problem = two_chains
  means = means_of_samples(problem)
  search_gdp(problem, Budget(max_evaluations=400), 0, **SMALL)
  one_us = problem.simulator.simulate(np.zeros(20, np.int32)).step_time_us
  assert problem.search_log.best_objective_us < 0.6 * one_us
  assert np.mean(means[-6:-1]) < 0.8 * np.mean(means[:3])


@pytest.mark.parametrize("way, evaluations", [
    ("scratch", 17),  # two batches of 8, and the likeliest devices, for which a third leaves none
    ("zero_shot", 16),
    ("fine_tune", 17),
])
def test_a_method_starts_from_nothing_stays_within_its_budget_and_repeats(
    weights, way, evaluations, eagerly):
  found = []
  for _ in range(2):
    problem = random_problem()
    placement = search_gdp(
        problem, Budget(max_evaluations=24), 3, way=way,
        weights=None if way == "scratch" else weights, **SMALL)
    np.testing.assert_array_equal(placement, problem.search_log.best_placement)
    assert problem.search_log.evaluations == evaluations
    found.append([row[::2] for row in problem.search_log.history])
  assert found[0] == found[1]


def test_zero_shot_of_one_evaluation_is_the_likeliest_devices(weights):
  problems = [random_problem(), random_problem()]
  for seed, problem in enumerate(problems):
    search_gdp(problem, Budget(max_evaluations=1), seed, way="zero_shot", weights=weights)
    assert problem.search_log.evaluations == 1
  np.testing.assert_array_equal(*(problem.search_log.best_placement for problem in problems))


def test_place_offers_the_methods_and_says_what_they_need(weights):
  assert {"gdp", "gdp_zero_shot", "gdp_fine_tune"} <= set(registry.names())
  with pytest.raises(PlacementError, match="needs policy_weights.*--policy=gdp"):
    PlacingConfig(method="gdp_zero_shot")
  PlacingConfig(method="gdp", policy_weights=weights)
  problem = random_problem()
  running.run(
      problem, registry.find("gdp_zero_shot"), Budget(max_evaluations=3), weights=weights)
  assert problem.search_log.evaluations == 3
