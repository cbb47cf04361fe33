"""A training run that was stopped and resumed ends with the bits of one that was not."""

import numpy as np
import pytest
from training_runs import AGGREGATOR, GDP, PLACETO, bits, gdp, placeto, published

pytestmark = pytest.mark.usefixtures("eager_module", "unsaved_module")


@pytest.mark.parametrize("make, config", [
    (placeto, PLACETO), (published, AGGREGATOR), (gdp, GDP)])
def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bits(make, config, tmp_path):
  whole = make(tmp_path / "whole", config)
  assert np.isfinite(whole.run()["loss"])
  make(tmp_path / "parts", config).run(until=3)  # the last checkpoint is of iteration 2
  resumed = make(tmp_path / "parts", config)
  assert resumed.iteration == 2
  resumed.run()
  assert bits(whole) == bits(resumed) and whole.learner.state() == resumed.learner.state()
