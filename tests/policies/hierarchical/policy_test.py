import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.errors import PlacementError
from placeto_tf.grouping import group_ops
from placeto_tf.policies.hierarchical import policy as policy_lib
from placeto_tf.policies.hierarchical.groups import Units
from placeto_tf.policies.hierarchical.policy import HierarchicalConfig, HierarchicalPolicy
from placeto_tf.policies.sequence_placer import PlacerConfig
from placeto_tf.training.one_shot import reinforce_loss
from random_problem import random_problem

SMALL = HierarchicalConfig(
    num_groups=5, grouper_hidden=8, type_width=3, grouper_scale=3.0, stretches=0.0,
    placer=PlacerConfig(hidden=8, bidirectional=True))


def units_problem():
  problem = random_problem()
  return problem.regrouped(
      group_ops(problem.graph, problem.costs, problem.allowed_ops, method="none"))


def drawn(count=4, config=SMALL):
  problem = units_problem()
  policy = HierarchicalPolicy(problem, config)
  sample = policy.sample(np.random.default_rng(0), count)
  return problem, policy, sample, tf.nest.map_structure(tf.constant, sample.choices)


def test_what_is_drawn_is_allowed_and_has_the_probability_it_is_said_to_have():
  problem, policy, sample, choices = drawn()
  units = np.arange(problem.num_groups)
  assert problem.allowed[units, sample.placements].all()
  log_probs, entropy = policy.log_prob(choices)
  assert log_probs.shape == entropy.shape == (4, problem.num_groups + 5)
  np.testing.assert_allclose(log_probs, sample.log_probs, atol=1e-5)


def test_units_of_one_group_share_a_device():
  _, _, sample, _ = drawn()
  groups, devices = sample.choices[policy_lib.GROUPS], sample.choices[policy_lib.DEVICES]
  np.testing.assert_array_equal(
      sample.placements, np.take_along_axis(devices, groups, axis=1))


def test_one_update_teaches_the_grouper_and_the_placer():
  _, policy, sample, choices = drawn()
  loss = reinforce_loss(
      tf.constant([1.0, -1.0, 0.5, -0.5]), tf.constant(0.0), sample.log_probs.shape[1])
  _, gradients = policy.gradients(choices, loss)
  for variable, gradient in zip(policy.trainable_variables, gradients):
    assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, variable.name


def test_the_groupers_part_of_the_loss_by_hand():
  """All of the grouper's weight is in its bias: the gradient is that of a softmax."""
  _, policy, _, _ = drawn()
  for variable in (policy._groups, policy._groups_bias):
    variable.assign(tf.zeros_like(variable))
  policy._groups_bias.assign([np.log(2.0), 0.0, 0.0, 0.0, 0.0])
  sample = policy.sample(np.random.default_rng(1), 2)
  choices = tf.nest.map_structure(tf.constant, sample.choices)
  p = np.array([2, 1, 1, 1, 1]) / 6
  groups = sample.choices[policy_lib.GROUPS]
  log_probs, entropy = policy.log_prob(choices)
  u = groups.shape[1]
  np.testing.assert_allclose(log_probs[:, :u], np.log(p)[groups], rtol=1e-5)
  np.testing.assert_allclose(entropy[:, :u], -(p * np.log(p)).sum(), rtol=1e-5)
  advantages = np.array([1.0, -0.5])
  loss = reinforce_loss(tf.constant(advantages, tf.float32), tf.constant(0.0), u + 5)
  _, gradients = policy.gradients(choices, loss)
  at = [v.name for v in policy.trainable_variables].index(policy._groups_bias.name)
  counts = np.stack([np.bincount(row, minlength=5) for row in groups])
  expected = -(advantages[:, None] * (counts - u * p)).mean(axis=0)
  np.testing.assert_allclose(gradients[at], expected, rtol=1e-4, atol=1e-4)


def test_an_empty_group_is_no_decision():
  _, policy, _, _ = drawn()
  policy._groups.assign(tf.zeros_like(policy._groups))
  policy._groups_bias.assign([0.0, 0.0, -1e9, 0.0, 0.0])
  sample = policy.sample(np.random.default_rng(1), 3)
  u = sample.placements.shape[1]
  assert (sample.log_probs[:, u + 2] == 0).all()
  assert (sample.log_probs[:, [u, u + 1, u + 3, u + 4]] < 0).all()
  log_probs, entropy = policy.log_prob(tf.nest.map_structure(tf.constant, sample.choices))
  assert (log_probs.numpy()[:, u + 2] == 0).all() and (entropy.numpy()[:, u + 2] == 0).all()


def test_the_larger_the_groupers_scale_the_surer_it_starts():
  sure = [drawn(config=HierarchicalConfig(
      num_groups=5, grouper_scale=scale, stretches=0.0, placer=SMALL.placer))[2].log_probs.min()
          for scale in (0.0, 1.0)]
  assert sure[0] == pytest.approx(np.log(0.2), abs=0.2) and sure[1] < sure[0]


def test_the_grouper_starts_with_stretches_of_the_walk():
  problem = units_problem()
  policy = HierarchicalPolicy(problem, HierarchicalConfig(
      num_groups=5, grouper_scale=0.0, placer=SMALL.placer))
  share = Units(problem).share
  likeliest = policy.group_logits().numpy().argmax(axis=1)
  np.testing.assert_array_equal(likeliest, np.minimum(share * 5, 4).astype(int))
  weight = np.bincount(likeliest, weights=problem.costs.compute_us[:, 0])
  assert weight.max() < 2 * weight.mean()


def test_what_makes_no_sense_is_refused():
  with pytest.raises(PlacementError, match="num_groups is 0"):
    HierarchicalConfig(num_groups=0)
