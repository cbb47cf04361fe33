import dataclasses
import json

import numpy as np
import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import node_problem
from placeto_tf.policies.gdp.policy import load_network, save_weights
from placeto_tf.policies.gdp.search import PPO
from placeto_tf.policies.gdp.training import GdpTrainer, GdpTrainingConfig, train
from random_problem import random_problem

pytestmark = pytest.mark.usefixtures("eager_module")

NETWORK = GdpConfig(max_devices=5, width=8, rounds=1, layers=1, heads=2, segment=16)
CONFIG = GdpTrainingConfig(
    graphs=("a", "b", "c"), iterations=4, checkpoint_every=2, watch_every=3, network=NETWORK,
    training=dataclasses.replace(PPO, batch_size=4, epochs=1))


def problems():
  return [node_problem(random_problem(num_ops=30, devices=text, seed=i))
          for i, text in enumerate(("k80:3", "k80:2", "p100:2+k80:2"))]


def trainer(root_dir, config=CONFIG, **options):
  return GdpTrainer(
      config, str(root_dir), problems=problems(), held_out=problems()[:1], **options)


def weights_of(run):
  return [variable.numpy() for variable in run.network.variables]


@pytest.fixture(name="whole", scope="module")
def whole_fixture(tmp_path_factory):
  """A run from its beginning to its end, its directory and what it reported."""
  root_dir, seen = tmp_path_factory.mktemp("whole"), []
  run = trainer(root_dir)
  figures = run.run(progress=lambda iteration, _: seen.append(iteration))
  return run, root_dir, figures, seen


def test_a_run_writes_weights_and_summaries_and_says_that_it_is_done(whole):
  run, root_dir, figures, seen = whole
  assert seen == [1, 2, 3, 4]
  assert np.isfinite(figures["loss"]) and figures["held_out_over_single"] > 0
  assert json.loads((root_dir / "done.json").read_text())["iterations"] == 4
  assert list((root_dir / "train").glob("events*"))
  for one, other in zip(weights_of(run), load_network(str(root_dir / "weights")).variables):
    np.testing.assert_array_equal(one, other)


def test_a_run_that_is_done_is_left_as_it_is(whole):
  _, root_dir, figures, _ = whole
  assert train(CONFIG, str(root_dir)) == figures  # "a" to "c" are no graphs: nothing is loaded


def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bits(whole, tmp_path):
  trainer(tmp_path).run(until=3)  # the last checkpoint is of iteration 2: the third is done again
  resumed = trainer(tmp_path)
  assert resumed.iteration == 2
  resumed.run()
  for one, other in zip(weights_of(whole[0]), weights_of(resumed)):
    np.testing.assert_array_equal(one, other)


def test_every_graph_has_its_turn_before_one_has_its_second(tmp_path):
  run = trainer(tmp_path)
  turns = [run._turn(iteration) for iteration in range(40)]
  assert all(sorted(turns[i] + turns[i + 1]) == [0, 1, 2] for i in range(0, 40, 2))
  assert len(set(turns[::2])) == 2  # the order is drawn anew


def test_another_configuration_does_not_resume(whole):
  with pytest.raises(PlacetoError, match="graphs_per_update=2, now it is 1; choose another"):
    trainer(whole[1], dataclasses.replace(CONFIG, graphs_per_update=1))


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
