import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from placeto_tf.environments import visit_environment as observation_lib
from placeto_tf.policies.placeto.published.network import NetworkConfig, PublishedNetwork
from random_problem import grouped_graph, random_problem


def network_for(grouped, config=None, seed=5):
  spec = tensor_spec.from_spec(observation_lib.observation_spec(
      grouped.num_groups, grouped.num_devices))
  action = tensor_spec.from_spec(observation_lib.action_spec(grouped.num_devices))
  network = PublishedNetwork(
      spec, action, [grouped], config=config or NetworkConfig(), seed=seed)
  network.create_variables()
  return network


def observe(grouped, batch=3, seed=0):
  rng = np.random.default_rng(seed)
  g = grouped.num_groups
  return {
      "placement": rng.integers(0, 3, (batch, g)).astype(np.int32),
      "current": rng.integers(0, g, (batch, 1)).astype(np.int32),
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


def test_renaming_the_groups_renames_the_decisions_and_changes_nothing_else():
  renamed = np.random.default_rng(1).permutation(12)
  plain, other = grouped_graph(random_problem()), grouped_graph(random_problem(renamed=renamed))
  observation = observe(plain)
  moved = {
      name: np.ascontiguousarray(value[:, np.argsort(renamed)])
      for name, value in observation.items() if name not in ("current", "graph")}
  moved["graph"] = observation["graph"]
  moved["current"] = renamed[observation["current"]].astype(np.int32)
  np.testing.assert_allclose(
      probabilities(network_for(plain), observation),
      probabilities(network_for(other), moved), rtol=1e-3, atol=1e-4)


def test_a_device_that_is_not_allowed_is_never_chosen(grouped):
  allowed = grouped.allowed.copy()
  allowed[:, 0], allowed[4] = False, [True] + [False] * (grouped.num_devices - 1)
  tight = dataclasses.replace(grouped, allowed=allowed)
  observation = observe(tight)
  observation["current"][:] = [[4], [5], [6]]
  found = probabilities(network_for(tight), observation)[:, 0]
  np.testing.assert_allclose(found[0], allowed[4].astype(float), atol=1e-6)
  assert (found[1:, 0] == 0).all()
  np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_time_and_batch_dimensions_are_both_taken(grouped):
  network, observation = network_for(grouped), observe(grouped, batch=6)
  deep = {name: value.reshape((2, 3) + value.shape[1:]) for name, value in observation.items()}
  flat, found = probabilities(network, observation), probabilities(network, deep)
  assert found.shape == (2, 3, 1, grouped.num_devices)
  np.testing.assert_allclose(found.reshape(flat.shape), flat, rtol=1e-5)


def with_larger_head(network):
  """The network with a head whose scores differ visibly, unlike those it starts with."""
  last = network._head.layers[-1]
  last.set_weights([3 * value for value in last.get_weights()])
  return network


def test_a_group_that_hears_from_nobody_gets_no_message():
  # Without edges both passes are the transform alone, whatever f and g are.
  grouped = grouped_graph(random_problem())
  none = np.zeros(0, dtype=np.int32)
  alone = dataclasses.replace(grouped, sources=none, targets=none, edge_bytes=np.zeros(0))
  network, observation = with_larger_head(network_for(alone)), observe(alone)
  before = probabilities(network, observation)
  for passing in network._passes:
    update = passing._update._node_set_updates["group"]
    for layer in (
        update._edge_set_inputs["dataflow"]._f.layers + update._next_state._g.layers):
      layer.set_weights([value + 1.0 for value in layer.get_weights()])
  np.testing.assert_array_equal(probabilities(network, observation), before)
