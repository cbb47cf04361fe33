import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from placeto_tf.policies.placeto.network import NetworkConfig, PlacetoNetwork
from placeto_tf.training import observation as observation_lib
from random_problem import grouped_graph, random_problem

PAPER = NetworkConfig(
    tied=False, skip=False, weigh_edges=False, squash=False, initial_keep=None,
    least_exploration=0.0)
TIED = dataclasses.replace(PAPER, tied=True, skip=True)


def network_for(grouped, config=None, groups_per_step=1, seed=5):
  spec = tensor_spec.from_spec(observation_lib.observation_spec(
      grouped.num_groups, grouped.num_devices, groups_per_step, 1))
  action = tensor_spec.from_spec(
      observation_lib.action_spec(grouped.num_devices, groups_per_step))
  network = PlacetoNetwork(
      spec, action, [grouped], config=config or NetworkConfig(), seed=seed)
  network.create_variables()
  return network


def observe(grouped, batch=3, groups_per_step=1, seed=0):
  rng = np.random.default_rng(seed)
  g = grouped.num_groups
  return {
      "placement": rng.integers(0, 3, (batch, g)).astype(np.int32),
      "current": rng.integers(0, g, (batch, groups_per_step)).astype(np.int32),
      "visited": (rng.random((batch, g)) < 0.5).astype(np.float32),
      "start": rng.random((batch, g)).astype(np.float32),
      "graph": np.zeros((batch, 1), np.int32),
  }


def probabilities(network, observation):
  distribution, _ = network({name: tf.constant(value) for name, value in observation.items()})
  return distribution.probs_parameter().numpy()


@pytest.fixture
def grouped():
  return grouped_graph(random_problem())


@pytest.mark.parametrize("config", [PAPER, NetworkConfig()], ids=["paper", "default"])
def test_renaming_the_groups_renames_the_decisions_and_changes_nothing_else(config):
  renamed = np.random.default_rng(1).permutation(12)
  plain, other = grouped_graph(random_problem()), grouped_graph(random_problem(renamed=renamed))
  observation = observe(plain)
  moved = {
      name: np.ascontiguousarray(value[:, np.argsort(renamed)])
      for name, value in observation.items() if name not in ("current", "graph")}
  moved["graph"] = observation["graph"]
  moved["current"] = renamed[observation["current"]].astype(np.int32)
  np.testing.assert_allclose(
      probabilities(network_for(plain, config), observation),
      probabilities(network_for(other, config), moved), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("config", [PAPER, NetworkConfig()], ids=["paper", "default"])
def test_a_device_that_is_not_allowed_is_never_chosen(grouped, config):
  allowed = grouped.allowed.copy()
  allowed[:, 0], allowed[4] = False, [True] + [False] * (grouped.num_devices - 1)
  tight = dataclasses.replace(grouped, allowed=allowed)
  observation = observe(tight)
  observation["current"][:] = [[4], [5], [6]]
  found = probabilities(network_for(tight, config), observation)[:, 0]
  np.testing.assert_allclose(found[0], allowed[4].astype(float), atol=1e-6)
  assert (found[1:, 0] == 0).all()
  np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_an_untrained_policy_leaves_a_group_where_it_is_as_often_as_asked(grouped):
  config = NetworkConfig(initial_keep=0.8, least_exploration=0.0)
  observation = observe(grouped, batch=50)
  found = probabilities(network_for(grouped, config), observation)[:, 0]
  here = np.take_along_axis(observation["placement"], observation["current"], axis=1)
  kept = np.take_along_axis(found, here, axis=1)
  assert 0.7 < kept.mean() < 0.9


def test_the_uniform_policy_is_always_mixed_in(grouped):
  network = network_for(grouped, NetworkConfig(least_exploration=0.3))
  network._keep.assign(50.0)  # a policy that has learned to move nothing
  found = probabilities(network, observe(grouped))[:, 0]
  choices = int(grouped.allowed[0].sum())
  np.testing.assert_allclose(
      np.sort(found, axis=1)[:, -choices:-1], 0.3 / choices, rtol=1e-4)


def test_placements_side_by_side_do_not_touch_each_other(grouped):
  network, observation = network_for(grouped), observe(grouped, batch=4)
  alone = {name: value[2:3] for name, value in observation.items()}
  np.testing.assert_allclose(
      probabilities(network, observation)[2:3], probabilities(network, alone), rtol=1e-5)


def test_time_and_batch_dimensions_are_both_taken(grouped):
  network, observation = network_for(grouped, groups_per_step=2), observe(
      grouped, batch=6, groups_per_step=2)
  deep = {name: value.reshape((2, 3) + value.shape[1:]) for name, value in observation.items()}
  flat, found = probabilities(network, observation), probabilities(network, deep)
  assert found.shape == (2, 3, 2, grouped.num_devices)
  np.testing.assert_allclose(found.reshape(flat.shape), flat, rtol=1e-5)


def test_two_networks_of_one_seed_are_equal_and_of_another_are_not(grouped):
  weights = [
      np.concatenate([v.numpy().ravel() for v in network_for(grouped, seed=s).variables])
      for s in (1, 1, 2)]
  np.testing.assert_array_equal(weights[0], weights[1])
  assert (weights[0] != weights[2]).any()


def test_a_policy_that_stays_too_often_is_made_to_move_and_the_other_way_round(grouped):
  network = network_for(grouped)
  before = float(network._keep)
  network.hold_keep(0.95)
  assert float(network._keep) < before
  network.hold_keep(0.2)
  assert float(network._keep) > before
  held = float(network._keep)
  network.hold_keep(0.8)
  assert float(network._keep) == pytest.approx(held)


def with_larger_head(network):
  """The network with a head whose scores differ visibly, unlike those it starts with."""
  last = network._head.layers[-1]
  last.set_weights([100 * value for value in last.get_weights()])
  return network


def test_equal_devices_that_change_places_change_places_in_the_decision(grouped):
  # Devices 0 to 2 are GPUs of one kind; a group moves with its device.
  network, observation = with_larger_head(network_for(grouped, TIED)), observe(grouped)
  renamed = np.array([2, 0, 1])
  moved = dict(observation, placement=renamed[observation["placement"]].astype(np.int32))
  plain, other = probabilities(network, observation), probabilities(network, moved)
  assert np.abs(plain[..., :3] - 1 / 3).max() > 0.01
  np.testing.assert_allclose(other[..., renamed], plain[..., :3], rtol=1e-4, atol=1e-6)


def test_the_papers_network_has_to_learn_each_device_for_itself(grouped):
  network, observation = with_larger_head(network_for(grouped, PAPER)), observe(grouped)
  renamed = np.array([2, 0, 1])
  moved = dict(observation, placement=renamed[observation["placement"]].astype(np.int32))
  plain, other = probabilities(network, observation), probabilities(network, moved)
  assert np.abs(other[..., renamed] - plain[..., :3]).max() > 1e-3


def test_tied_weights_fit_any_number_of_devices():
  weights = network_for(grouped_graph(random_problem(devices="k80:2")), TIED).variables
  other = network_for(grouped_graph(random_problem(devices="k80:7")), TIED).variables
  assert [v.shape for v in weights] == [v.shape for v in other]


def test_a_faster_device_is_told_from_a_slower_one_by_what_the_group_takes_there():
  grouped = grouped_graph(random_problem(devices="k80:1+v100:1"))
  observation = observe(grouped)
  observation["placement"][:] = 0
  faster = dataclasses.replace(grouped, compute_us=grouped.compute_us * [1.0, 0.2, 1.0])
  slower = dataclasses.replace(grouped, compute_us=grouped.compute_us * [1.0, 5.0, 1.0])
  found = []
  for each in (faster, slower):
    other = with_larger_head(network_for(each, TIED))
    found.append(probabilities(other, observation))
  assert np.abs(found[0] - found[1]).max() > 1e-3


def test_a_group_that_hears_from_nobody_gets_no_message():
  # Without edges both passes are the transform alone, whatever f and g are.
  grouped = grouped_graph(random_problem())
  none = np.zeros(0, dtype=np.int32)
  alone = dataclasses.replace(grouped, sources=none, targets=none, edge_bytes=np.zeros(0))
  network, observation = with_larger_head(network_for(alone, TIED)), observe(alone)
  before = probabilities(network, observation)
  for passing in network._passes:
    update = passing._update._node_set_updates["group"]
    for layer in (
        update._edge_set_inputs["dataflow"]._f.layers + update._next_state._g.layers):
      layer.set_weights([value + 1.0 for value in layer.get_weights()])
  np.testing.assert_array_equal(probabilities(network, observation), before)
