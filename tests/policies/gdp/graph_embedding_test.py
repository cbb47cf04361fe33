import numpy as np
import tensorflow as tf

from placeto_tf.policies.gdp.graph_embedding import (
    GraphEmbedding,
    MaxPooling,
    node_graph,
    pool_neighbours,
)
from placeto_tf.policies.gdp.node_inputs import NODE_FEATURES
from placeto_tf.policies.layers import Seeds

# 0 -> 2, 1 -> 2, 2 -> 3; node 4 stands alone.
SOURCES, TARGETS = tf.constant([0, 1, 2]), tf.constant([2, 2, 3])


def graph():
  return node_graph(tf.constant([5]), tf.constant([3]), SOURCES, TARGETS)


def test_each_feature_is_the_greatest_of_the_neighbours_by_hand():
  x = tf.constant([[1.0, 5.0], [3.0, 2.0], [7.0, 1.0], [4.0, 4.0], [9.0, 9.0]])
  np.testing.assert_array_equal(
      pool_neighbours(graph(), x, producers=True), [[0, 0], [0, 0], [3, 5], [7, 1], [0, 0]])
  np.testing.assert_array_equal(
      pool_neighbours(graph(), x, producers=False), [[7, 1], [7, 1], [4, 4], [0, 0], [0, 0]])


def test_a_round_by_hand():
  layer = MaxPooling(2, Seeds(0))
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
  layer = GraphEmbedding(8, rounds, Seeds(1))
  return layer(graph(), tf.zeros(5, tf.int32), tf.constant(features)).numpy()


def test_a_node_hears_of_those_as_far_away_as_there_are_rounds():
  features = np.random.default_rng(0).normal(size=(5, NODE_FEATURES)).astype(np.float32)
  other = features.copy()
  other[3] += 1  # two edges from 0 and 1, one from 2, none from 4
  changed = [np.abs(embed(rounds, features) - embed(rounds, other)).max(axis=1) > 1e-6
             for rounds in (1, 2)]
  np.testing.assert_array_equal(changed[0], [False, False, True, True, False])
  np.testing.assert_array_equal(changed[1], [True, True, True, True, False])
