import dataclasses
import json

import numpy as np
import pytest

from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.errors import PlacementError
from placeto_tf.policies.placeto.scorer import ScorerWeights, score


def test_scores_are_those_of_a_perceptron_and_capped():
  weights = ScorerWeights.untrained(seed=1)
  rng = np.random.default_rng(0)
  weights = dataclasses.replace(
      weights, bias_1=rng.normal(size=32), bias_2=rng.normal(size=32))
  pairs = rng.normal(size=(5, NUM_FEATURES)).astype(np.float32)
  scores = np.empty(5, np.float32)
  score(pairs, weights.arrays, scores)
  first = np.maximum(pairs @ weights.hidden_1 + weights.bias_1, 0)
  expected = np.maximum(first @ weights.hidden_2 + weights.bias_2, 0) @ weights.output
  expected = expected / (1 + np.abs(expected) / 10)
  np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_the_mean_of_networks_is_one_network(tmp_path):
  members = [ScorerWeights.untrained(seed, 16) for seed in range(3)]
  ScorerWeights.mean(members).save(str(tmp_path))
  mean = ScorerWeights.load(str(tmp_path))
  pairs = np.random.default_rng(0).normal(size=(50, NUM_FEATURES)).astype(np.float32)

  def uncapped(weights):
    scores = weights.scores(pairs)
    return scores / (1 - np.abs(scores) / 10)

  expected = np.mean([uncapped(each) for each in members], axis=0)
  np.testing.assert_allclose(uncapped(mean), expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(mean.dense.scores(pairs), mean.scores(pairs), atol=1e-6)
  with pytest.raises(PlacementError, match="one width"):
    ScorerWeights.mean([*members, ScorerWeights.untrained(0, 8)])


def test_weights_come_back_from_a_directory(tmp_path):
  weights = ScorerWeights.untrained(seed=3)
  weights.save(str(tmp_path), commit="abc")
  loaded = ScorerWeights.load(str(tmp_path))
  for one, other in zip(weights.arrays, loaded.arrays):
    np.testing.assert_array_equal(one, other)
  assert json.loads((tmp_path / "weights.json").read_text())["commit"] == "abc"
