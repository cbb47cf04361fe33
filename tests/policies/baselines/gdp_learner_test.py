import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.policies.baselines.gdp import STRETCH, GdpLearner, GdpPolicy, PpoConfig
from placeto_tf.policies.baselines.gdp_inputs import node_inputs, node_problem
from placeto_tf.policies.baselines.gdp_network import GdpConfig, GdpNetwork
from placeto_tf.policies.baselines.one_shot import LOG_PROBS
from random_problem import random_problem

SMALL = GdpConfig(max_devices=5, width=16, rounds=1, layers=1, heads=2, segment=16)
SIZES = (20, 35)


@pytest.fixture(name="learner")
def learner_fixture(eagerly):
  graphs = [node_inputs(GroupedGraph.of(node_problem(random_problem(num_ops=n, seed=n))), 5)
            for n in SIZES]
  return GdpLearner(
      GdpPolicy(graphs, GdpNetwork(SMALL)), PpoConfig(epochs=1, entropy=0.0, final_entropy=0.0))


def played(learner, graph, rewards, *, stretches=None, before=0.0):
  """Placements of a graph that earned so much, drawn with probabilities e^before as large as now.

  Args: before: [M]; stretches: [M], by default each node alone.
  """
  m, b = SIZES[graph], len(rewards)
  placements, info = learner.policy.sample(np.random.default_rng(graph), b, graph)
  info[STRETCH] = np.tile(
      np.arange(m, dtype=np.int32) if stretches is None else stretches, (b, 1))
  log_probs = tf.nn.log_softmax(learner.policy.logits(graph)).numpy()
  chosen = np.take_along_axis(log_probs[None], placements[..., None], axis=2)[..., 0]
  info[LOG_PROBS] = learner.policy._pooled(
      tf.constant(chosen), tf.constant(info[STRETCH])).numpy() + np.float32(before)
  return trajectory.Trajectory(
      step_type=np.full((b, 1), ts.StepType.FIRST),
      next_step_type=np.full((b, 1), ts.StepType.LAST),
      observation=np.full((b, 1), graph, np.int32), action=placements[:, None],
      policy_info={name: value[:, None] for name, value in info.items()},
      reward=np.array(rewards, np.float32)[:, None], discount=np.zeros((b, 1), np.float32))


def test_the_clipped_objective_by_hand(learner):
  # Advantages 1 and -1. Had node 0 been drawn with a probability e^0.5 times smaller, and all
  # others as they are now: placement 0 gains min(e^0.5, 1.2) + 19, placement 1 loses
  # max(e^0.5, 1.2) + 19.
  before = np.zeros(20)
  before[0] = -0.5
  loss = learner.learn([played(learner, 0, [-1.0, -3.0], before=before)], 0.0)["loss"]
  assert loss == pytest.approx(-(1.2 + 19 - np.exp(0.5) - 19) / 2 / 20, abs=1e-5)


def test_the_ratio_of_what_was_sampled_together_is_clipped_as_one(learner):
  # Four nodes that are e^0.5 times as likely now, in the mean, as one stretch: 4 of 20 nodes.
  stretches = np.repeat(np.int32([0, 1]), [4, 16])
  before = np.repeat([-0.5, 0.0], [4, 16])
  steps = played(learner, 0, [-1.0, -3.0], stretches=stretches, before=before)
  expected = -(4 * 1.2 + 16 - 4 * np.exp(0.5) - 16) / 2 / 20
  assert learner.learn([steps], 0.0)["loss"] == pytest.approx(expected, abs=1e-5)


def test_graphs_count_alike_whatever_their_size_and_each_by_its_own_rewards(learner):
  before = [np.zeros(m) for m in SIZES]
  before[0][0], before[1][:7] = -0.5, -0.5
  gain = 1.2 - np.exp(0.5)  # of a node and its opposite
  steps = [played(learner, 0, [-1.0, -3.0], before=before[0]),
           played(learner, 1, [-0.1, -0.101], before=before[1])]
  expected = -(gain / 20 + 7 * gain / 35) / 2 / 2
  assert learner.learn(steps, 0.0)["loss"] == pytest.approx(expected, abs=1e-4)


def test_the_bonus_is_the_mean_entropy_of_a_node(learner):
  learner._agent.entropy_coefficient.assign(0.0)
  other = GdpLearner(learner.policy, PpoConfig(epochs=1, entropy=0.5))
  p = tf.nn.softmax(learner.policy.logits(0)).numpy()[:, :3]
  loss = other.learn([played(other, 0, [-2.0, -2.0])], 0.0)["loss"]
  assert loss == pytest.approx(0.5 * (p * np.log(p)).sum(axis=1).mean(), rel=1e-4)
