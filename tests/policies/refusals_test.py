"""Settings and weights of policies that cannot be, and the words that say so."""


import numpy as np
import pytest

from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.errors import PlacetoError
from placeto_tf.policies import weight_files
from placeto_tf.policies.baselines.gdp import PpoConfig
from placeto_tf.policies.baselines.gdp_network import GdpConfig
from placeto_tf.policies.baselines.gdp_training import GdpTrainingConfig
from placeto_tf.policies.baselines.hierarchical import HierarchicalConfig
from placeto_tf.policies.baselines.sequence_placer import PlacerConfig
from placeto_tf.policies.placeto.published.network import NetworkConfig
from placeto_tf.policies.placeto.published.training import PublishedTrainingConfig
from placeto_tf.policies.placeto.published.weights import PublishedWeights
from placeto_tf.policies.placeto.scorer import ScorerWeights
from placeto_tf.policies.placeto.training import PlacetoTrainingConfig

GRAPHS = {"graphs": ("a",)}


@pytest.mark.parametrize("config, wrong", [
    (PpoConfig, {"epochs": 0}), (GdpConfig, {"width": 0}), (GdpConfig, {"heads": 3}),
    (GdpTrainingConfig, {**GRAPHS, "iterations": 0}), (HierarchicalConfig, {"num_groups": 0}),
    (NetworkConfig, {"embedding": "magic"}),
    (PublishedTrainingConfig, {**GRAPHS, "max_groups": 0}),
    (PlacetoTrainingConfig, {**GRAPHS, "arms": 0}), (PlacerConfig, {"device_width": 0}),
    (PlacerConfig, {"bidirectional": True, "hidden": 5})])
def test_a_setting_that_makes_no_sense_is_named(config, wrong):
  with pytest.raises(PlacetoError, match=list(wrong)[-1]):
    config(**wrong)


def test_weights_that_are_none_are_refused(tmp_path):
  with pytest.raises(PlacetoError, match="cannot read the description of weights"):
    PublishedWeights.load(str(tmp_path))
  good = ScorerWeights.untrained()
  arrays = dict(zip(("hidden_1", "bias_1", "hidden_2", "bias_2", "output"), good.arrays))
  with pytest.raises(PlacetoError, match="hidden_1 of the scorer has shape"):
    ScorerWeights(**{**arrays, "hidden_1": np.zeros((3, 32))})
  arrays["message_0"] = arrays.pop("output")
  weight_files.write(str(tmp_path), arrays, {"features": list(NAMES)})
  with pytest.raises(PlacetoError, match="the arrays bias_1, .*, message_0, expected hidden_1"):
    ScorerWeights.load(str(tmp_path))
