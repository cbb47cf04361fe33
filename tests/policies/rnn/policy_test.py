
import numpy as np
import tensorflow as tf

from placeto_tf.policies.rnn.policy import RnnConfig, RnnPolicy
from placeto_tf.policies.sequence_placer import PlacerConfig
from random_problem import random_problem

SMALL = RnnConfig(placer=PlacerConfig(hidden=8), type_width=3)


def test_what_is_sampled_is_allowed_and_the_network_gives_its_probability():
  problem = random_problem()
  policy = RnnPolicy(problem, SMALL)
  sampled = policy.sample(np.random.default_rng(0), 6)
  assert sampled.shape == (6, problem.num_groups)
  assert problem.allowed[np.arange(problem.num_groups), sampled].all()
  distribution, _ = policy(tf.zeros([6, 1], tf.int32))  # as an agent asks: [B, T, G]
  np.testing.assert_allclose(
      distribution.log_prob(tf.constant(sampled[:, None]))[:, 0],
      policy.log_prob(tf.constant(sampled)), atol=1e-6)
