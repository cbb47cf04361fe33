import dataclasses

import numpy as np
import tensorflow as tf

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.policies.baselines import gdp_inputs, gdp_network
from placeto_tf.policies.baselines import gdp_inputs as inputs_lib
from placeto_tf.policies.baselines.gdp import GdpPolicy
from placeto_tf.policies.layers import Seeds
from random_problem import random_problem

SMALL = gdp_network.GdpConfig(max_devices=5, width=16, rounds=2, layers=2, heads=2, segment=16)


def inputs_of(**options):
  problem = gdp_inputs.node_problem(random_problem(**options))
  return gdp_inputs.node_inputs(GroupedGraph.of(problem), SMALL.max_devices)


def tensors(inputs):
  return gdp_inputs.NodeTable([inputs])(tf.constant([0]))


def test_all_nodes_are_placed_in_one_pass_where_they_may_be():
  policy = GdpPolicy([inputs_of(num_ops=50, devices="k80:3")], gdp_network.GdpNetwork(SMALL))
  assert policy.logits().shape == (50, 5)
  probabilities = tf.nn.softmax(policy.logits()).numpy()
  assert (probabilities[:, :3] > 0).all() and (probabilities[:, 3:] == 0).all()  # host, padding


def test_graphs_side_by_side_have_the_logits_of_each_alone():
  network = gdp_network.GdpNetwork(SMALL)
  graphs = [inputs_of(num_ops=n, seed=n, devices=devices)
            for n, devices in ((20, "k80:3"), (37, "p100:2"))]
  together = network(gdp_inputs.NodeTable(graphs)(tf.constant([1, 0]))).numpy()
  alone = np.concatenate([network(tensors(each)).numpy() for each in graphs[::-1]])
  np.testing.assert_allclose(together, alone, atol=1e-5)


def test_superposition_places_equal_nodes_otherwise_in_another_graph():
  # A cluster of other links changes no node, only the vector that gates the layers.
  inputs = inputs_of(num_ops=30)
  other = {**inputs, "devices": inputs["devices"] + 1}
  gated, plain = (gdp_network.GdpNetwork(dataclasses.replace(SMALL, superposition=on))
                  for on in (True, False))
  assert np.abs((gated(tensors(inputs)) - gated(tensors(other))).numpy()[:, :3]).max() > 1e-3
  np.testing.assert_array_equal(plain(tensors(inputs)), plain(tensors(other)))


def test_every_weight_has_a_gradient():
  network, inputs = gdp_network.GdpNetwork(SMALL), tensors(inputs_of(num_ops=40))
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.nn.log_softmax(network(inputs))[:, 0])
  gradients = tape.gradient(loss, network.trainable_variables)
  quiet = [variable.name for variable, gradient in zip(network.trainable_variables, gradients)
           if gradient is None]
  assert not quiet


def test_nodes_are_what_must_share_a_device_with_the_features_of_all_its_ops():
  problem = gdp_inputs.node_problem(random_problem(num_ops=40, num_groups=4))
  assert problem.num_groups == 40
  inputs = gdp_inputs.node_inputs(GroupedGraph.of(problem), 6)
  assert inputs["features"].shape == (40, inputs_lib.NODE_FEATURES)
  np.testing.assert_allclose(inputs["features"].std(axis=0).max(), 1, atol=0.2)
  assert (inputs["sources"] < inputs["targets"]).all()  # topological order
  assert inputs["mask"].sum(axis=1).tolist() == [3] * 40  # neither the host nor padding
  assert inputs["devices"][:, 0].tolist() == [1, 1, 1, 1, 0, 0]


# 0 -> 2, 1 -> 2, 2 -> 3; node 4 stands alone.
SOURCES, TARGETS = tf.constant([0, 1, 2]), tf.constant([2, 2, 3])


def graph():
  return gdp_network.node_graph(tf.constant([5]), tf.constant([3]), SOURCES, TARGETS)


def test_each_feature_is_the_greatest_of_the_neighbours_by_hand():
  x = tf.constant([[1.0, 5.0], [3.0, 2.0], [7.0, 1.0], [4.0, 4.0], [9.0, 9.0]])
  np.testing.assert_array_equal(
      gdp_network.pool_neighbours(graph(), x, producers=True),
      [[0, 0], [0, 0], [3, 5], [7, 1], [0, 0]])
  np.testing.assert_array_equal(
      gdp_network.pool_neighbours(graph(), x, producers=False),
      [[7, 1], [7, 1], [4, 4], [0, 0], [0, 0]])


def test_a_round_by_hand():
  layer = gdp_network.MaxPooling(2, Seeds(0))
  x = tf.constant([[1.0, 0.0], [0.0, 2.0], [3.0, -1.0], [0.0, 4.0], [1.0, 1.0]])
  layer(graph(), x)
  into, out_of, join = (each.kernel.numpy() for each in (layer._into, layer._out_of, layer._join))
  producers, consumers = np.maximum(x @ into, 0), np.maximum(x @ out_of, 0)
  joined = np.concatenate(
      [x[2], np.maximum(producers[0], producers[1]), consumers[3]]) @ join
  expected = np.maximum(joined, 0)
  np.testing.assert_allclose(
      layer(graph(), x)[2], expected / max(np.linalg.norm(expected), 1e-6), atol=1e-5)


def embed(rounds, features):
  layer = gdp_network.GraphEmbedding(8, rounds, Seeds(1))
  return layer(graph(), tf.zeros(5, tf.int32), tf.constant(features)).numpy()


def test_a_node_hears_of_those_as_far_away_as_there_are_rounds():
  features = np.random.default_rng(0).normal(size=(5, gdp_inputs.NODE_FEATURES)).astype(np.float32)
  other = features.copy()
  other[3] += 1  # two edges from 0 and 1, one from 2, none from 4
  changed = [np.abs(embed(rounds, features) - embed(rounds, other)).max(axis=1) > 1e-6
             for rounds in (1, 2)]
  np.testing.assert_array_equal(changed[0], [False, False, True, True, False])
  np.testing.assert_array_equal(changed[1], [True, True, True, True, False])
