import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from placeto_tf.policies.placeto import agent as agent_lib
from placeto_tf.policies.placeto.network import NetworkConfig, PlacetoNetwork
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.placement_environment import EnvironmentConfig, PlacementEnvironment
from random_problem import grouped_graph, random_problem


@pytest.fixture
def two_groups():
  """Agent, network and observation of a graph of two groups, on two GPUs, both on the first."""
  problem = random_problem(num_ops=10, num_groups=2, devices="k80:2")
  grouped = grouped_graph(problem)
  environment = PlacementEnvironment(
      problem.allowed, SimulatedCost(problem, grouped), np.zeros(2, dtype=int),
      config=EnvironmentConfig(num_episodes=3))
  time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
  action_spec = tensor_spec.from_spec(environment.action_spec())
  network = PlacetoNetwork(
      time_step_spec.observation, action_spec, [grouped],
      config=NetworkConfig(rounds=1, initial_keep=0.7, least_exploration=0.0))
  agent = agent_lib.PlacetoAgent(
      time_step_spec, action_spec, network, learning_rate=0.01, entropy_coefficient=0.0,
      gradient_clipping=1.25)
  return agent, network, environment.reset().observation


def singles(observation, action, advantage):
  """Decisions as rows of one each."""
  return agent_lib.decisions(
      {name: value[:, None] for name, value in observation.items()}, action[:, None],
      advantage[:, None])


def probabilities(network, observation):
  return network({k: tf.constant(v) for k, v in observation.items()})[0].probs_parameter().numpy()


def test_the_gradient_of_the_loss_is_the_one_worked_out_by_hand(two_groups):
  # loss = -mean over m of A_m log pi(a_m), and the liking for staying, c, is added to the logit of
  # device 0, where the groups are. So d loss / d c = -mean of A_m (1[a_m = 0] - pi(0)).
  agent, network, observation = two_groups
  action = np.array([[0], [1], [0]], dtype=np.int32)
  advantage = np.array([2.0, -1.0, 0.5])
  experience = singles(observation, action, advantage)
  with tf.GradientTape() as tape:
    loss = agent.total_loss(experience, experience.reward, weights=None).loss
  found = float(tape.gradient(loss, network._keep))
  stay = probabilities(network, observation)[:, 0, 0]
  expected = -np.mean(advantage * ((action[:, 0] == 0) - stay))
  assert found == pytest.approx(expected, rel=1e-4)


def test_the_loss_is_minus_the_mean_of_advantage_times_log_probability(two_groups):
  agent, network, observation = two_groups
  action, advantage = np.array([[0], [1], [0]], dtype=np.int32), np.array([2.0, -1.0, 0.5])
  experience = singles(observation, action, advantage)
  loss = agent.total_loss(experience, experience.reward, weights=None)
  chosen = np.take_along_axis(probabilities(network, observation)[:, 0], action, axis=1)[:, 0]
  assert float(loss.loss) == pytest.approx(-np.mean(advantage * np.log(chosen)), rel=1e-4)


def test_the_entropy_bonus_follows_its_coefficient(two_groups):
  agent, network, observation = two_groups
  agent.entropy_coefficient.assign(0.5)
  experience = singles(observation, np.zeros((3, 1), dtype=np.int32), np.zeros(3))
  loss = agent.total_loss(experience, experience.reward, weights=None)
  p = probabilities(network, observation)[:, 0, :2]
  assert float(loss.loss) == pytest.approx(0.5 * np.mean((p * np.log(p)).sum(axis=1)), rel=1e-4)


def test_what_paid_becomes_likelier_and_what_cost_less_likely(two_groups):
  agent, network, observation = two_groups
  before = probabilities(network, observation)[0, 0, 1]
  for _ in range(5):
    agent.train(singles(
        observation, np.array([[1], [0], [1]], dtype=np.int32), np.array([1.0, -1.0, 1.0])))
  assert probabilities(network, observation)[0, 0, 1] > before + 0.05


def test_an_update_in_pieces_is_the_same_update(two_groups):
  agent, network, observation = two_groups
  rows = {name: np.stack([value] * 4, axis=1) for name, value in observation.items()}
  rng = np.random.default_rng(0)
  experience = agent_lib.decisions(
      rows, rng.integers(0, 2, (3, 4, 1)).astype(np.int32), rng.normal(size=(3, 4)))
  weights = tf.constant(rng.random((3, 4)), tf.float32)
  before, found = [variable.numpy() for variable in network.variables], []
  for pieces in (1, 2):
    agent._pieces = pieces
    agent.train(experience, weights=weights)
    found.append(float(agent.gradient_norm))
    for variable, value in zip(network.variables, before):
      variable.assign(value)
  assert found[0] > 0 and found[1] == pytest.approx(found[0], rel=1e-4)


def test_the_value_of_every_device_makes_the_loss_minus_what_is_expected(two_groups):
  agent, network, observation = two_groups
  values = np.random.default_rng(0).normal(size=(3, 1, 3))
  experience = singles(observation, np.zeros((3, 1), dtype=np.int32), np.zeros(3))
  p = probabilities(network, observation)[:, 0]
  info = agent.train(experience, values=tf.constant(values, tf.float32))
  expected = -(p * values[:, 0]).sum(axis=1).mean()
  assert float(info.extra.policy_gradient_loss) == pytest.approx(expected, rel=1e-4)
