import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from placeto_tf.encoding.derived import GraphTable
from placeto_tf.environments import visit_environment as observation_lib
from placeto_tf.policies.placeto.published.network import NetworkConfig, PublishedNetwork
from random_problem import grouped_graph, random_problem

SMALL = NetworkConfig(rounds=2)


def graphs():
  return [grouped_graph(random_problem(num_ops=n, num_groups=g, seed=g))
          for n, g in ((60, 12), (20, 7))]


def network(of, room, config):
  spec = tensor_spec.from_spec(observation_lib.observation_spec(
      room, of[0].num_devices, len(of)))
  made = PublishedNetwork(
      spec, tensor_spec.from_spec(observation_lib.action_spec(of[0].num_devices)), of,
      config=config, seed=3)
  made.create_variables()
  return made


@pytest.mark.parametrize("config", [
    SMALL, NetworkConfig(embedding="simple_partitioner"),
    NetworkConfig(embedding="simple_aggregator")])
def test_a_graph_among_others_and_padded_is_decided_on_as_it_is_alone(config):
  together, rng = network(graphs(), 12, config), np.random.default_rng(0)
  for index, graph in enumerate(graphs()):
    g, alone = graph.num_groups, network([graph], graph.num_groups, config)
    for one, other in zip(alone.variables, together.variables):
      one.assign(other)
    start = rng.random((4, g)).astype(np.float32)
    observation = {
        "placement": rng.integers(0, 3, (4, g)).astype(np.int32),
        "current": rng.integers(0, g, (4, 1)).astype(np.int32),
        "visited": np.ones((4, g), np.float32), "start": start,
        "graph": np.zeros((4, 1), np.int32)}
    padded = {name: value if name in ("current", "graph") else np.pad(value, ((0, 0), (0, 12 - g)))
              for name, value in observation.items()}
    padded["graph"] = np.full((4, 1), index, np.int32)
    found, expected = (
        of({k: tf.constant(v) for k, v in o.items()})[0].probs_parameter().numpy()
        for of, o in ((together, padded), (alone, observation)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_the_simple_aggregator_tells_groups_apart_by_the_flag_alone():
  # Without the flag of the current group (and without start times, which are relative to it) the
  # sum over all groups is the same whichever is at hand.
  config = NetworkConfig(embedding="simple_aggregator")
  graph = graphs()[0]
  made = network([graph], 12, config)
  state = np.random.default_rng(0).random((1, 12, 1, 10)).astype(np.float32)
  tables = GraphTable([graph])(tf.constant([0]))
  one, other = (
      made._poolings(tf.constant(state), tf.constant([[[g]]]), tables).numpy() for g in (2, 5))
  np.testing.assert_array_equal(one, other)
  assert np.abs(one).max() > 0
