import dataclasses

import numpy as np
import pytest
from training_runs import GDP, gdp

from placeto_tf.errors import PlacetoError
from placeto_tf.policies.baselines.gdp import load_network, save_weights
from placeto_tf.policies.baselines.gdp_network import GdpNetwork

pytestmark = pytest.mark.usefixtures("eager_module")


def test_a_run_watches_and_leaves_its_weights(tmp_path):
  run = gdp(tmp_path, dataclasses.replace(GDP, iterations=1))
  assert run.run()["held_out_over_single"] > 0
  exported = load_network(str(tmp_path / "weights"))
  assert exported.config == GDP.network
  for one, saved in zip(run.learner.network.variables, exported.variables):
    np.testing.assert_array_equal(one, saved)


def test_a_new_run_can_begin_with_given_weights_of_such_a_network(tmp_path):
  given = GdpNetwork(GDP.network, seed=7)
  save_weights(given, str(tmp_path / "given"))
  run = gdp(tmp_path / "run", warm_start=str(tmp_path / "given"))
  np.testing.assert_array_equal(run.learner.network.variables[0], given.variables[0])
  with pytest.raises(PlacetoError, match="expected GdpConfig.*segment=8"):
    gdp(tmp_path / "other", dataclasses.replace(
        GDP, network=dataclasses.replace(GDP.network, segment=8)),
        warm_start=str(tmp_path / "given"))
