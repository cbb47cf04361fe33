import types

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from placeto_tf.environments.visit_environment import VisitConfig, VisitEnvironment
from placeto_tf.policies.placeto.published import learner as learner_lib
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.network import NetworkConfig, PublishedNetwork
from random_problem import grouped_graph, random_problem


def make(baseline=False):
  """Agent, network, observation and baseline of two groups, on two GPUs, both on the first."""
  problem = random_problem(num_ops=10, num_groups=2, devices="k80:2")
  grouped = grouped_graph(problem)
  environment = VisitEnvironment(
      problem, grouped, np.zeros(2, dtype=int),
      config=VisitConfig(num_episodes=3))
  time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
  action_spec = tensor_spec.from_spec(environment.action_spec())
  network = PublishedNetwork(
      time_step_spec.observation, action_spec, [grouped],
      config=NetworkConfig(rounds=1))
  values = learner_lib.StepBaseline(time_step_spec.observation, 1, 2) if baseline else None
  agent = learner_lib.PublishedAgent(
      time_step_spec, action_spec, network, optimizer=tf.keras.optimizers.Adam(0.01),
      value_network=values, normalize_returns=False)
  return agent, network, environment.reset().observation, values


@pytest.fixture
def two_groups():
  return make()[:3]


def singles(observation, action, reward):
  """Episodes of one decision each."""
  shape = (len(reward), 1)
  return tf.nest.map_structure(tf.constant, trajectory.Trajectory(
      step_type=np.full(shape, ts.StepType.FIRST), action=action[:, None], policy_info=(),
      observation={name: value[:, None] for name, value in observation.items()},
      next_step_type=np.full(shape, ts.StepType.LAST),
      reward=reward[:, None].astype(np.float32), discount=np.ones(shape, np.float32)))


def probabilities(network, observation):
  return network({k: tf.constant(v) for k, v in observation.items()})[0].probs_parameter().numpy()


def test_the_gradient_of_the_loss_is_the_one_worked_out_by_hand(two_groups):
  # loss = -mean over m of A_m log pi(a_m), and b, the last bias of the head, is added to the logit
  # of device 0. So d loss / d b = -mean of A_m (1[a_m = 0] - pi(0)).
  agent, network, observation = two_groups
  action = np.array([[0], [1], [0]], dtype=np.int32)
  advantage = np.array([2.0, -1.0, 0.5])
  experience = singles(observation, action, advantage)
  bias = network._head.layers[-1].bias
  with tf.GradientTape() as tape:
    loss = agent.total_loss(experience, experience.reward, weights=None).loss
  found = float(tape.gradient(loss, bias)[0])
  first = probabilities(network, observation)[:, 0, 0]
  expected = -np.mean(advantage * ((action[:, 0] == 0) - first))
  assert found == pytest.approx(expected, rel=1e-4)


def test_the_entropy_bonus_follows_its_coefficient(two_groups):
  agent, network, observation = two_groups
  agent.entropy_coefficient.assign(0.5)
  experience = singles(observation, np.zeros((3, 1), dtype=np.int32), np.zeros(3))
  loss = agent.total_loss(experience, experience.reward, weights=None)
  p = probabilities(network, observation)[:, 0, :2]
  assert float(loss.loss) == pytest.approx(0.5 * np.mean((p * np.log(p)).sum(axis=1)), rel=1e-4)


def test_the_baseline_of_the_graph_and_the_step_is_taken_off_the_return():
  agent, network, observation, baseline = make(baseline=True)
  baseline.table.assign([[0.5, 7.0]])  # of the first step, which this is, and of the second
  reward = np.array([1.0, 0.5, 0.0])
  action = np.array([[0], [1], [0]], dtype=np.int32)
  chosen = np.take_along_axis(probabilities(network, observation)[:, 0], action, axis=1)[:, 0]
  info = agent.train(singles(observation, action, reward))
  assert float(info.extra.policy_gradient_loss) == pytest.approx(
      -np.mean((reward - 0.5) * np.log(chosen)), rel=1e-4)
  np.testing.assert_array_equal(baseline.table, [[0.5, 7.0]])


def test_a_baseline_is_the_mean_return_of_a_graphs_last_updates_at_each_step():
  learner = learner_lib.PublishedLearner.__new__(learner_lib.PublishedLearner)
  learner.returns = np.full((2, 2, 3), np.nan)
  learner._baseline = types.SimpleNamespace(table=tf.Variable(np.zeros((2, 3), np.float32)))
  rewards = np.array([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]], np.float32)  # two episodes of graph 1
  for scale in (100.0, 1.0, 3.0):  # the first one is forgotten
    learner._lay_baseline(scale * rewards, 1)
  np.testing.assert_allclose(learner._baseline.table, [[0, 0, 0], [6, 2, 2]])


def test_the_papers_choices_are_the_papers():
  config = PublishedConfig()
  assert (config.learning_rate, config.final_learning_rate) == (1e-3, 1e-4)
  assert config.sum_gradients
  assert (config.entropy, config.final_entropy) == (0.003, 0.0)
  network = config.network
  assert (network.embedding, network.rounds, network.width) == ("placeto", 8, None)
  assert network.transform_layers == 2
  rules = config.environment
  assert rules.num_episodes == 8
  assert (rules.start, rules.order, rules.reward) == ("given", "topological", "intermediate")
