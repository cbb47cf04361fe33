import numpy as np
import tensorflow as tf

from placeto_tf.grouping import group_ops
from placeto_tf.policies.baselines.hierarchical import HierarchicalConfig, HierarchicalPolicy, Parts
from placeto_tf.policies.baselines.sequence_placer import PlacerConfig
from random_problem import random_problem

SMALL = HierarchicalConfig(
    num_groups=5, grouper_hidden=8, type_width=3, grouper_scale=3.0, stretches=0.0,
    placer=PlacerConfig(hidden=8, bidirectional=True))


def units_problem():
  problem = random_problem()
  return problem.regrouped(
      group_ops(problem.graph, problem.costs, problem.allowed_ops, method="none"))


def sampled(count=4, config=SMALL):
  problem = units_problem()
  policy = HierarchicalPolicy(problem, config)
  policy.create_variables()
  return problem, policy, policy.sample(np.random.default_rng(0), count)


def test_sets_of_one_group_share_a_device():
  problem, policy, decisions = sampled()
  groups, devices = np.split(decisions, [problem.num_groups], axis=1)
  np.testing.assert_array_equal(
      policy.placements(decisions), np.take_along_axis(devices, groups, axis=1))


def gradients(policy, decisions, advantages):
  """Of REINFORCE's loss."""
  with tf.GradientTape() as tape:
    log_probs = tf.reduce_sum(policy.log_prob(tf.constant(decisions)), axis=1)
    loss = -tf.reduce_mean(tf.constant(advantages, tf.float32) * log_probs)
  return tape.gradient(loss, policy.trainable_variables)


def test_one_update_teaches_the_grouper_and_the_placer():
  _, policy, decisions = sampled()
  found = gradients(policy, decisions, [1.0, -1.0, 0.5, -0.5])
  for variable, gradient in zip(policy.trainable_variables, found):
    assert np.abs(gradient).max() > 0, variable.name


def test_the_groupers_part_of_the_loss_by_hand():
  """All of the grouper's weight is in its bias: the gradient is that of a softmax."""
  _, policy, _ = sampled()
  for variable in (policy._groups, policy._groups_bias):
    variable.assign(tf.zeros_like(variable))
  policy._groups_bias.assign([np.log(2.0), 0.0, 0.0, 0.0, 0.0])
  decisions = policy.sample(np.random.default_rng(1), 2)
  p = np.array([2, 1, 1, 1, 1]) / 6
  groups = decisions[:, :-5]
  log_probs = policy.log_prob(tf.constant(decisions))
  u = groups.shape[1]
  np.testing.assert_allclose(log_probs[:, :u], np.log(p)[groups], rtol=1e-5)
  advantages = np.array([1.0, -0.5])
  found = gradients(policy, decisions, advantages)
  at = [v.name for v in policy.trainable_variables].index(policy._groups_bias.name)
  counts = np.stack([np.bincount(row, minlength=5) for row in groups])
  expected = -(advantages[:, None] * (counts - u * p)).mean(axis=0)
  np.testing.assert_allclose(found[at], expected, rtol=1e-4, atol=1e-4)


def test_an_empty_group_is_no_decision():
  _, policy, _ = sampled()
  policy._groups.assign(tf.zeros_like(policy._groups))
  policy._groups_bias.assign([0.0, 0.0, -1e9, 0.0, 0.0])
  decisions = policy.sample(np.random.default_rng(1), 3)
  of_groups = policy.log_prob(tf.constant(decisions)).numpy()[:, -5:]
  assert (of_groups[:, 2] == 0).all() and (of_groups[:, [0, 1, 3, 4]] < 0).all()


def test_the_grouper_starts_with_stretches_of_the_walk():
  problem = units_problem()
  policy = HierarchicalPolicy(problem, HierarchicalConfig(
      num_groups=5, grouper_scale=0.0, placer=SMALL.placer))
  share = Parts(problem).share
  likeliest = policy.group_logits().numpy().argmax(axis=1)
  np.testing.assert_array_equal(likeliest, np.minimum(share * 5, 4).astype(int))
  weight = np.bincount(likeliest, weights=problem.costs.compute_us[:, 0])
  assert weight.max() < 2 * weight.mean()
