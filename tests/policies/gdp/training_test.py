import dataclasses

import numpy as np
import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.policies.gdp.learner import PpoConfig
from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import node_problem
from placeto_tf.policies.gdp.policy import load_network, save_weights
from placeto_tf.policies.gdp.training import GdpTraining, GdpTrainingConfig
from placeto_tf.training.trainer import Trainer
from random_problem import random_problem

pytestmark = pytest.mark.usefixtures("eager_module")

NETWORK = GdpConfig(max_devices=5, width=8, rounds=1, layers=1, heads=2, segment=16)
CONFIG = GdpTrainingConfig(
    graphs=("a", "b", "c"), iterations=4, checkpoint_every=2, watch_every=3, network=NETWORK,
    training=PpoConfig(batch_size=4, epochs=1))


def problems():
  return [node_problem(random_problem(num_ops=30, devices=text, seed=i))
          for i, text in enumerate(("k80:3", "k80:2", "p100:2+k80:2"))]


def trainer(root_dir, config=CONFIG, **options):
  return Trainer(
      GdpTraining, config, str(root_dir), problems=problems(), held_out=problems()[:1], **options)


def weights_of(run):
  return [variable.numpy() for variable in run.learner.network.variables]


def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bits_and_leaves_weights(tmp_path):
  whole = trainer(tmp_path / "whole")
  figures = whole.run()
  assert np.isfinite(figures["loss"]) and figures["held_out_over_single"] > 0
  trainer(tmp_path / "parts").run(until=3)  # the last checkpoint is of iteration 2
  resumed = trainer(tmp_path / "parts")
  assert resumed.iteration == 2
  resumed.run()
  exported = load_network(str(tmp_path / "parts" / "weights")).variables
  for one, other, saved in zip(weights_of(whole), weights_of(resumed), exported):
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, saved)


def test_every_graph_has_its_turn_before_one_has_its_second(tmp_path):
  run = trainer(tmp_path)
  turns = [run.learner.turn(iteration) for iteration in range(1, 41)]
  assert all(sorted(turns[i] + turns[i + 1]) == [0, 1, 2] for i in range(0, 40, 2))
  assert len(set(turns[::2])) == 2  # the order is drawn anew


def test_a_new_run_can_begin_with_given_weights_of_such_a_network(tmp_path):
  given = GdpNetwork(NETWORK, seed=7)
  save_weights(given, str(tmp_path / "given"))
  run = trainer(tmp_path / "run", warm_start=str(tmp_path / "given"))
  np.testing.assert_array_equal(weights_of(run)[0], given.variables[0])
  with pytest.raises(PlacetoError, match="expected GdpConfig.*segment=8"):
    trainer(tmp_path / "other", dataclasses.replace(
        CONFIG, network=dataclasses.replace(NETWORK, segment=8)),
            warm_start=str(tmp_path / "given"))


@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"graphs_per_update": 0}])
def test_wrong_settings_are_refused(wrong):
  with pytest.raises(PlacetoError, match=next(iter(wrong))):
    dataclasses.replace(CONFIG, **wrong)
