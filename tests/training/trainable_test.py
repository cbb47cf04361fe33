import pytest

from placeto_tf import policies
from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.training import settings
from placeto_tf.training.trainable import RunConfig

POLICIES = policies.trainable()


@pytest.mark.parametrize("name", POLICIES)
def test_every_field_of_every_policy_can_be_set_as_it_is_listed(name):
  policy = POLICIES[name]()
  assert policy.name == name and isinstance(policy.config, RunConfig)
  config = policy.configure({"graphs": ("a",), "seed": 3})
  assert (config.graphs, config.seed) == (("a",), 3)
  assert settings.changed(config, settings.describe(config)) == config


def test_a_preset_is_another_way_to_train_a_policy():
  policy = POLICIES["placeto"]()
  assert policy.preset(None) is policy
  config = policy.preset("paper").configure({"graphs": ("a",)}, ["network.rounds=4"])
  assert config.placeto.network.rounds == 4
  assert settings.changed(config, ["network.rounds=8"]).placeto == PublishedConfig()
  with pytest.raises(PlacetoError, match="no preset 'papers'; expected paper"):
    policy.preset("papers")
  with pytest.raises(PlacetoError, match="gdp has no preset 'paper'; expected none"):
    POLICIES["gdp"]().preset("paper")
