"""Defaults of `place()` that depend on other options."""

import pytest

from placeto_tf.placing import config as config_module
from placeto_tf.placing.config import MOST_DEFAULT_RUNS, PlacingConfig


@pytest.mark.parametrize("cores, options, independent_runs", [
    (1, {}, 1), (3, {}, 3), (3, {"max_seconds": 5}, 3), (1000, {}, MOST_DEFAULT_RUNS),
    (3, {"max_evaluations": 100}, 1), (3, {"max_evaluations": 100, "max_seconds": 5}, 1),
    (3, {"independent_runs": 5}, 5), (3, {"max_evaluations": 100, "independent_runs": 2}, 2)])
def test_runs_are_as_many_as_cores_unless_evaluations_are_the_limit(
    monkeypatch, cores, options, independent_runs):
  monkeypatch.setattr(config_module, "num_cores", lambda: cores)
  assert PlacingConfig(**options).num_runs == independent_runs
