import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.policies.placeto import embedding, graph_tables
from random_problem import grouped_graph, random_problem


@pytest.fixture
def grouped():
  return grouped_graph(random_problem())


def tables(grouped):
  return graph_tables.GraphTables([grouped], [1e4])()


def two_layers_by_hand(layers, x):
  first, second = (layer.get_weights() for layer in layers.layers)
  return np.maximum(x @ first[0] + first[1], 0) @ second[0] + second[1]


@pytest.mark.parametrize("forward", [True, False])
def test_a_round_sums_what_the_neighbours_send_and_adds_the_groups_own(grouped, forward):
  layer = embedding.MessagePassing(
      4, 2, embedding.Seeds(0), forward=forward, weigh_edges=False, squash=False)
  raw = np.random.default_rng(0).normal(size=(grouped.num_groups, 1, 3)).astype(np.float32)
  found = layer(embedding.group_graph(tables(grouped), tf.constant(raw))).numpy()
  adjacency = np.zeros((grouped.num_groups,) * 2)
  adjacency[grouped.targets, grouped.sources] = 1  # row g: from whom g hears
  if not forward:
    adjacency = adjacency.T
  own = two_layers_by_hand(layer._transform, raw[:, 0])
  x = own
  for _ in range(2):
    x = own + two_layers_by_hand(layer._g, adjacency @ two_layers_by_hand(layer._f, x))
  np.testing.assert_allclose(found[:, 0], x, rtol=1e-4, atol=1e-4)


def test_placements_side_by_side_do_not_touch_each_other(grouped):
  layer = embedding.MessagePassing(
      4, 3, embedding.Seeds(0), forward=True, weigh_edges=True, squash=True)
  raw = np.random.default_rng(0).normal(size=(grouped.num_groups, 5, 3)).astype(np.float32)

  def embed(states):
    return layer(embedding.group_graph(tables(grouped), tf.constant(states))).numpy()

  np.testing.assert_allclose(embed(raw)[:, 2:3], embed(raw[:, 2:3]), rtol=1e-5, atol=1e-6)


def test_pooling_puts_a_group_beside_sums_over_its_relatives(grouped):
  layer = embedding.Poolings(4, embedding.Seeds(0))
  x = np.random.default_rng(0).normal(size=(1, grouped.num_groups, 4)).astype(np.float32)
  found = layer(tf.constant(x), tf.constant([[3]]), tables(grouped)).numpy()[0, 0]
  np.testing.assert_allclose(found[:4], x[0, 3])
  relatives = (grouped.ancestors[3], grouped.descendants[3], grouped.parallel[3])
  for i, (mask, f, g) in enumerate(zip(relatives, layer._f, layer._g)):
    total = two_layers_by_hand(f, x[0])[mask].sum(axis=0, keepdims=True)
    np.testing.assert_allclose(
        found[4 * (i + 1):4 * (i + 2)], two_layers_by_hand(g, total)[0], rtol=1e-4, atol=1e-5)
