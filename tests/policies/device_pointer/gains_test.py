import numpy as np
import pytest

from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.policies.device_pointer.gains import OwnGains, target
from placeto_tf.policies.device_pointer.scorer import ScorerWeights, score


def test_only_gains_count_and_large_ones_alike():
  falls = np.array([-0.5, 0.0, 0.01, 0.04, 0.3])
  np.testing.assert_allclose(target(falls), [0, 0, 0.5**0.5, 2**0.5, 2**0.5], rtol=1e-6)


def last_layer(weights, features):
  first = np.maximum(features @ weights.hidden_1 + weights.bias_1, 0)
  return np.maximum(first @ weights.hidden_2 + weights.bias_2, 0).astype(np.float64)


def test_the_correction_is_that_of_ridge_regression_on_all_moves():
  weights, rng, prior = ScorerWeights.untrained(1), np.random.default_rng(0), 5.0
  gains = OwnGains(weights, prior)
  features = rng.normal(size=(40, NUM_FEATURES)).astype(np.float32)
  falls = rng.normal(scale=0.02, size=40)
  for each, fall in zip(features, falls):
    gains.learn(each, fall)
  inputs = last_layer(weights, features)
  missing = target(falls) - inputs @ weights.output.astype(np.float64)
  correction = np.linalg.solve(
      inputs.T @ inputs + prior * np.eye(inputs.shape[1]), inputs.T @ missing)
  np.testing.assert_allclose(
      gains.arrays[-1], weights.output + correction, rtol=1e-4, atol=1e-5)
  before, after = np.empty(40, np.float32), np.empty(40, np.float32)
  score(features, weights.arrays, before)
  score(features, gains.arrays, after)
  wanted = target(falls)
  assert ((after - wanted) ** 2).sum() < 0.8 * ((before - wanted) ** 2).sum()


@pytest.mark.parametrize("prior", [0.0, 1e12])
def test_trained_weights_are_kept_where_they_are_to_count_for_all(prior):
  weights = ScorerWeights.untrained(1)
  gains = OwnGains(weights, prior)
  gains.learn(np.ones(NUM_FEATURES, np.float32), 0.04)
  np.testing.assert_allclose(gains.arrays[-1], weights.output, atol=1e-8)
  assert gains.arrays[-1] is not weights.output
