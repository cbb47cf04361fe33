import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.policies.baselines.gdp import GRAPH, STRETCH, GdpPolicy, sample_stretches
from placeto_tf.policies.baselines.gdp_inputs import node_inputs, node_problem
from placeto_tf.policies.baselines.gdp_network import GdpConfig, GdpNetwork
from placeto_tf.policies.baselines.one_shot import LOG_PROBS
from random_problem import random_problem

SMALL = GdpConfig(max_devices=5, width=16, rounds=1, layers=1, heads=2, segment=16)


@pytest.fixture(name="policy", scope="module")
def policy_fixture():
  graphs = [node_inputs(GroupedGraph.of(node_problem(random_problem(num_ops=n, seed=n))), 5)
            for n in (20, 35)]
  return GdpPolicy(graphs, GdpNetwork(SMALL))


def test_samples_have_the_probabilities_the_network_gives(policy):
  placements, _ = policy.sample(np.random.default_rng(0), 4000, graph=0)
  assert placements.shape == (4000, 20) and placements.max() < 3
  sampled = np.stack([(placements == d).mean(axis=0) for d in range(5)], axis=1)
  np.testing.assert_allclose(sampled, tf.nn.softmax(policy.logits(0)), atol=0.04)


def test_stretches_of_the_walk_have_all_lengths():
  rng, walk = np.random.default_rng(0), np.random.default_rng(1).permutation(400)
  counts = []
  for _ in range(200):
    along = sample_stretches(rng, walk)[np.argsort(walk)]
    assert along[0] == 0 and set(np.diff(along)) <= {0, 1}  # none comes back
    counts.append(1 + along[-1])
  # Mean lengths from 1 to 100, equally many by their logarithm: the middle is 10, 40 stretches.
  assert min(counts) < 8 and max(counts) > 250 and 25 < np.median(counts) < 60


def test_softened_logits_lie_as_far_apart_as_asked_and_prefer_the_same_devices():
  inputs = node_inputs(GroupedGraph.of(node_problem(random_problem(num_ops=20, seed=20))), 5)
  policy = GdpPolicy([inputs], GdpNetwork(SMALL))
  likeliest, before = policy.greedy(), policy.logits()
  policy.soften(100.0)  # they are closer already
  np.testing.assert_array_equal(policy.logits(), before)
  policy.soften(0.01)
  after = policy.logits()
  choices = inputs["mask"].sum(axis=1) > 1
  spread = [row[mask > 0].std() for row, mask in zip(after[choices], inputs["mask"][choices])]
  assert np.mean(spread) == pytest.approx(0.01, rel=1e-4)
  np.testing.assert_array_equal(policy.greedy(), likeliest)
  np.testing.assert_array_equal(after < -1e9, inputs["mask"] == 0)


def test_what_is_sampled_together_shares_its_noise(policy):
  placements, info = policy.sample(np.random.default_rng(2), 50, graph=1)
  logits = policy.logits(1)
  for devices, stretches in zip(placements, info[STRETCH]):
    for stretch in np.unique(stretches):
      nodes = np.flatnonzero(stretches == stretch)
      # Noise g explains the draws if g_i - g_j is at least what each node on i asks for.
      for i in set(devices[nodes]):
        for j in set(devices[nodes]) - {i}:
          least = (logits[nodes, j] - logits[nodes, i])[devices[nodes] == i].max()
          assert least <= (logits[nodes, j] - logits[nodes, i])[devices[nodes] == j].min() + 1e-6


def distribution(policy, stretches, graph):
  """As an agent asks for it, with room for the largest graph."""
  room = policy.most_nodes - stretches.shape[1]
  stretches = np.concatenate([stretches, np.tile(
      np.arange(stretches.shape[1], policy.most_nodes, dtype=np.int32), (len(stretches), 1))], 1)
  found, _ = policy({GRAPH: tf.fill(stretches.shape, graph), STRETCH: tf.constant(stretches)})
  return found, lambda actions: found.log_prob(
      tf.constant(np.pad(actions, [(0, 0), (0, room)]))).numpy()


def test_log_probabilities_and_entropies_of_what_was_sampled(policy):
  for graph, m in ((0, 20), (1, 35)):
    placements, info = policy.sample(np.random.default_rng(0), 3, graph=graph)
    found, log_probs_of = distribution(policy, info[STRETCH], graph)
    log_probs, entropy = log_probs_of(placements)[:, :m], found.entropy().numpy()[:, :m]
    np.testing.assert_allclose(log_probs, info[LOG_PROBS], atol=1e-5)
    p = tf.nn.softmax(policy.logits(graph)).numpy()[:, :3]
    together = np.flatnonzero(info[STRETCH][2] == info[STRETCH][2, 7])
    expected = np.log(p[together, placements[2, together]]).mean()
    np.testing.assert_allclose(log_probs[2, 7], expected, rtol=1e-4)
    np.testing.assert_allclose(
        entropy, np.broadcast_to(-(p * np.log(p)).sum(axis=1), (3, m)), rtol=1e-3, atol=1e-5)
