import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.encoding import derived
from placeto_tf.policies.layers import Seeds
from placeto_tf.policies.placeto.published import embedding
from random_problem import grouped_graph, random_problem


@pytest.fixture
def grouped():
  return grouped_graph(random_problem())


def tables(grouped):
  return derived.GraphTable([grouped])(tf.constant([0]))


def two_layers_by_hand(layers, x, last="relu"):
  first, second = (layer.get_weights() for layer in layers.layers)
  found = np.maximum(x @ first[0] + first[1], 0) @ second[0] + second[1]
  return np.maximum(found, 0) if last else found


def raw_features(grouped, placements=1):
  return np.random.default_rng(0).normal(
      size=(1, grouped.num_groups, placements, 3)).astype(np.float32)


@pytest.mark.parametrize("forward", [True, False])
def test_a_round_sums_what_the_neighbours_send_and_adds_the_groups_own(grouped, forward):
  layer = embedding.MessagePassing(
      4, 2, Seeds(0), forward=forward)
  raw = raw_features(grouped)
  found = layer(embedding.group_graph(tables(grouped), tf.constant(raw))).numpy()
  adjacency = np.zeros((grouped.num_groups,) * 2)
  flow = grouped.flow
  adjacency[grouped.targets[flow], grouped.sources[flow]] = 1  # row g: from whom g hears
  if not forward:
    adjacency = adjacency.T
  own = two_layers_by_hand(layer._transform, raw[0, :, 0], last=None)
  hears = adjacency.any(axis=1, keepdims=True)
  assert not hears.all()
  update = layer._update._node_set_updates["group"]
  f, g = update._edge_set_inputs["dataflow"]._f, update._next_state._g
  x = own
  for _ in range(2):
    x = own + hears * two_layers_by_hand(g, adjacency @ two_layers_by_hand(f, x))
  np.testing.assert_allclose(found[:, 0], x, rtol=1e-4, atol=1e-4)


def test_placements_side_by_side_do_not_touch_each_other(grouped):
  layer = embedding.MessagePassing(4, 3, Seeds(0), forward=True)
  raw = raw_features(grouped, 5)

  def embed(states):
    return layer(embedding.group_graph(tables(grouped), tf.constant(states))).numpy()

  np.testing.assert_allclose(embed(raw)[:, 2:3], embed(raw[:, :, 2:3]), rtol=1e-5, atol=1e-6)


def test_pooling_puts_a_group_beside_sums_over_its_relatives(grouped):
  layer = embedding.Poolings(4, Seeds(0))
  x = np.random.default_rng(0).normal(size=(1, grouped.num_groups, 1, 4)).astype(np.float32)
  found = layer(tf.constant(x), tf.constant([[[3]]]), tables(grouped)).numpy()[0, 0, 0]
  x = x[0, :, 0]
  np.testing.assert_allclose(found[:4], x[3])
  relatives = tables(grouped)[derived.RELATIVES].numpy()[0, :, 3] > 0
  for i, (mask, f, g) in enumerate(zip(relatives, layer._f, layer._g)):
    total = two_layers_by_hand(f, x)[mask].sum(axis=0, keepdims=True)
    np.testing.assert_allclose(
        found[4 * (i + 1):4 * (i + 2)], two_layers_by_hand(g, total)[0], rtol=1e-4, atol=1e-5)
