import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.placing import registry, running
from placeto_tf.policies.baselines import hierarchical, rnn
from placeto_tf.policies.baselines.hierarchical import HierarchicalConfig
from placeto_tf.policies.baselines.rnn import RnnConfig
from placeto_tf.policies.baselines.sequence_placer import PlacerConfig
from placeto_tf.problem.budget import Budget
from random_problem import means_of_samples, random_problem

RNN = RnnConfig(
    placer=PlacerConfig(hidden=16), type_width=4, training=dataclasses.replace(
        RnnConfig().training, learning_rate=2e-2, final_learning_rate=2e-2))
HIERARCHICAL = HierarchicalConfig(
    num_groups=4, grouper_hidden=32, type_width=4, grouper_scale=3.0,
    placer=PlacerConfig(hidden=16, bidirectional=True), training=dataclasses.replace(
        HierarchicalConfig().training, learning_rate=1e-2, final_learning_rate=1e-2))
POLICIES = {"rnn": rnn.POLICY, "hierarchical": hierarchical.POLICY}
CONFIGS = {"rnn": RNN, "hierarchical": HIERARCHICAL}


@pytest.mark.parametrize("make, config", [
    (rnn.RnnPolicy, RNN), (hierarchical.HierarchicalPolicy, HIERARCHICAL)])
def test_what_is_sampled_is_allowed_and_the_network_gives_its_probability(make, config):
  problem = random_problem()
  policy = make(problem, config)
  policy.create_variables()
  decisions = policy.sample(np.random.default_rng(0), 6)
  assert decisions.shape == (6, *policy.decisions.shape)
  assert problem.allowed[np.arange(problem.num_groups), policy.placements(decisions)].all()
  distribution, _ = policy(tf.zeros([6, 1], tf.int32))  # as an agent asks: [B, T, A]
  np.testing.assert_allclose(
      distribution.log_prob(tf.constant(decisions[:, None]))[:, 0],
      policy.log_prob(tf.constant(decisions)), atol=1e-6)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_two_chains_end_up_on_two_devices(name, two_chains):
  problem = two_chains
  means = means_of_samples(problem)
  placement = POLICIES[name].place(problem, Budget(max_evaluations=960), config=CONFIGS[name])
  half_us = problem.simulator.simulate(np.repeat(np.int32([0, 1]), 10)).step_time_us
  assert problem.simulator.simulate(placement).step_time_us == half_us
  assert np.mean(means[-5:]) < 0.85 * means[0]  # not by luck: what it draws is better


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_method_starts_from_nothing_stays_within_its_budget_and_repeats(name, eagerly):
  found = []
  for _ in range(2):
    problem = random_problem()
    placement = POLICIES[name].place(
        problem, Budget(max_evaluations=40), 3, config=CONFIGS[name])
    np.testing.assert_array_equal(placement, problem.search_log.best_placement)
    assert problem.search_log.evaluations == 32  # two batches of 16
    found.append([row[::2] for row in problem.search_log.history])
  assert found[0] == found[1]


def test_a_method_answers_even_if_loading_took_all_its_time(eagerly):
  problem = random_problem()
  assert running.run(problem, registry.find("rnn"), Budget(max_seconds=1e-3)).shape == (60,)
