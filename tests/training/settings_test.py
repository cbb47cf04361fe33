import dataclasses
from typing import Optional, Tuple

import pytest

from placeto_tf import policies
from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.training import settings
from placeto_tf.training.trainable import RunConfig


@dataclasses.dataclass(frozen=True)
class Network:
  width: int = 8
  rate: float = 0.5
  squash: bool = True


@dataclasses.dataclass(frozen=True)
class Config:
  graphs: Tuple[str, ...]
  sizes: Tuple[int, ...] = (1, 2)
  target: Optional[float] = None
  low: int = 0
  high: int = 1
  network: Network = Network()
  teacher: Network = Network(rate=0.25)

  def __post_init__(self):
    if self.low > self.high:
      raise PlacetoError(f"low is {self.low}, above high, {self.high}")


CONFIG = Config(("a", "b"))


def test_fields_are_listed_with_their_values():
  assert settings.describe(CONFIG) == [
      "graphs=a,b", "sizes=1,2", "target=none", "low=0", "high=1",
      "network.width=8", "network.rate=0.5", "network.squash=true",
      "teacher.width=8", "teacher.rate=0.25", "teacher.squash=true"]


def test_what_is_listed_can_be_set_and_changes_nothing():
  assert settings.changed(CONFIG, settings.describe(CONFIG)) == CONFIG


def test_values_are_parsed_by_their_annotations():
  found = settings.changed(CONFIG, [
      "graphs=c", "sizes=", "target=0.9", "network.width=16",
      "network.squash=false", "teacher.rate=1e-3"])
  assert found == Config(
      ("c",), sizes=(), target=0.9,
      network=Network(width=16, squash=False), teacher=Network(rate=1e-3))
  assert settings.changed(found, ["target=none"]).target is None


def test_the_last_parts_of_a_name_are_enough_where_they_are_one_fields():
  assert settings.changed(dataclasses.replace(CONFIG, teacher=None), ["width=3"]).network.width == 3
  with pytest.raises(PlacetoError, match="may be network.width or teacher.width"):
    settings.changed(CONFIG, ["width=3"])


def test_checks_see_all_new_values_at_once_and_the_last_one_counts():
  assert settings.changed(CONFIG, ["low=5", "high=9", "low=7"]).low == 7
  with pytest.raises(PlacetoError, match="low is 5, above high, 1"):
    settings.changed(CONFIG, ["low=5"])


@pytest.mark.parametrize("setting, message", [
    ("width", "expected field=value"),
    ("network.widht=3", r"did you mean network.width .*the fields are graphs, sizes"),
    ("low=1.5", "low is '1.5', expected a whole number; it is 0 by default"),
    ("network.squash=yes", "expected true or false"),
    ("sizes=1,x", "expected a whole number"),
])
def test_what_is_wrong_is_named(setting, message):
  with pytest.raises(PlacetoError, match=message):
    settings.changed(CONFIG, [setting])


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
