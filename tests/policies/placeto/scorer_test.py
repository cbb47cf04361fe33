import dataclasses
import json

import numpy as np

from placeto_tf.encoding.pair_features import NUM_FEATURES
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


def test_weights_come_back_from_a_directory(tmp_path):
  weights = ScorerWeights.untrained(seed=3)
  weights.save(str(tmp_path), commit="abc")
  loaded = ScorerWeights.load(str(tmp_path))
  for one, other in zip(weights.arrays, loaded.arrays):
    np.testing.assert_array_equal(one, other)
  assert json.loads((tmp_path / "weights.json").read_text())["commit"] == "abc"
