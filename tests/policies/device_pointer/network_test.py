import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.environments import moves_environment as moves
from placeto_tf.policies.device_pointer import agent as agent_lib
from placeto_tf.policies.device_pointer.network import PairNetwork, PairValueNetwork
from placeto_tf.policies.saved_policy import save_policy


@pytest.fixture(name="observation")
def observation_fixture():
  rng = np.random.default_rng(0)
  mask = np.array([[1, 1, 1, 0, 0]] * 3 + [[1, 0, 1, 1, 1]], np.float32)
  features = rng.normal(size=(4, 5, moves.NUM_FEATURES)).astype(np.float32)
  return {moves.FEATURES: features, moves.MASK: mask}


def make_network(seed=0, without=()):
  specs = tensor_spec.from_spec(moves.observation_spec(5))
  network = PairNetwork(
      specs, tensor_spec.from_spec(moves.action_spec(5)), seed=seed, without=without)
  network.create_variables()
  return network


def test_compiled_scores_equal_the_network_and_masked_devices_are_never_drawn(observation):
  network = make_network()
  logits = network(observation)[0].logits.numpy()
  scores = agent_lib.scores_of(observation[moves.FEATURES], network.weights_for_scoring())
  allowed = observation[moves.MASK] > 0
  np.testing.assert_allclose(scores[allowed], logits[allowed], rtol=1e-5, atol=1e-5)
  assert (tf.nn.softmax(logits).numpy()[~allowed] == 0).all()


def test_permuting_devices_permutes_the_probabilities(observation):
  network, order = make_network(), np.array([2, 0, 1, 3, 4])
  renamed = {name: value[:, order] for name, value in observation.items()}
  np.testing.assert_allclose(
      network(renamed)[0].probs_parameter().numpy(),
      network(observation)[0].probs_parameter().numpy()[:, order], atol=1e-6)


def test_values_do_not_depend_on_the_order_of_devices_or_on_masked_ones(observation):
  network = PairValueNetwork(tensor_spec.from_spec(moves.observation_spec(5)))
  network.create_variables()
  values = network(observation)[0].numpy()
  assert values.shape == (4,)
  order = np.array([4, 3, 2, 1, 0])
  renamed = {name: value[:, order] for name, value in observation.items()}
  np.testing.assert_allclose(network(renamed)[0].numpy(), values, rtol=1e-4, atol=1e-5)
  other = {name: value.copy() for name, value in observation.items()}
  other[moves.FEATURES][0, 3:] = 7
  np.testing.assert_allclose(network(other)[0].numpy(), values, rtol=1e-5)


def test_a_network_without_a_feature_does_not_see_it_in_either_inference(observation):
  network = make_network(without=("rank",))
  other = {name: value.copy() for name, value in observation.items()}
  other[moves.FEATURES][..., NAMES.index("rank")] += 5
  one = network(observation)[0].logits.numpy()
  np.testing.assert_array_equal(network(other)[0].logits.numpy(), one)
  assert not np.allclose(make_network()(other)[0].logits.numpy(), one)
  allowed = observation[moves.MASK] > 0
  scores = agent_lib.scores_of(other[moves.FEATURES], network.weights_for_scoring())
  np.testing.assert_allclose(scores[allowed], one[allowed], rtol=1e-5, atol=1e-5)


def test_weights_go_out_and_come_back(observation):
  one, other = make_network(seed=1), make_network(seed=2)
  assert not np.allclose(one(observation)[0].logits, other(observation)[0].logits)
  other.set_weights_for_scoring(one.weights_for_scoring())
  np.testing.assert_array_equal(one(observation)[0].logits, other(observation)[0].logits)


def test_the_saved_model_takes_dense_inputs_and_acts_like_the_compiled_policy(
    observation, tmp_path):
  agent = agent_lib.make_agent(5)
  save_policy(agent.policy, str(tmp_path / "policy"))
  loaded = tf.saved_model.load(str(tmp_path / "policy"))
  step = tf.nest.map_structure(tf.constant, ts.restart(observation, batch_size=4))
  actions = loaded.action(step).action.numpy()
  scores = agent_lib.scores_of(
      observation[moves.FEATURES], agent.actor_net.weights_for_scoring())
  expected = np.where(observation[moves.MASK] > 0, scores, -np.inf).argmax(axis=1)
  np.testing.assert_array_equal(actions, expected)
