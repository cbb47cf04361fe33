"""Defaults of `place()` that depend on other options."""

import pytest

from placeto_tf.placing import config as config_module
from placeto_tf.placing.config import MOST_DEFAULT_ISLANDS, PlacingConfig


@pytest.mark.parametrize("cores, options, islands", [
    (1, {}, 1), (3, {}, 3), (3, {"max_seconds": 5}, 3), (1000, {}, MOST_DEFAULT_ISLANDS),
    (3, {"max_evaluations": 100}, 1), (3, {"max_evaluations": 100, "max_seconds": 5}, 1),
    (3, {"islands": 5}, 5), (3, {"max_evaluations": 100, "islands": 2}, 2)])
def test_islands_are_as_many_as_cores_unless_evaluations_are_the_limit(
    monkeypatch, cores, options, islands):
  monkeypatch.setattr(config_module, "num_cores", lambda: cores)
  assert PlacingConfig(**options).num_islands == islands
