"""Runs GDP on a problem: from scratch, or with weights trained on other graphs.

Dimensions: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.policies.gdp.learner import GdpLearner, PpoConfig
from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import node_inputs, node_problem
from placeto_tf.policies.gdp.policy import GdpPolicy, load_network
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot import search, search_environment

# Training ends with near-certain devices for all nodes, which leaves nothing to explore. So fine-
# tuning begins with a limited spread of logits, and with a smaller entropy bonus than training.
_FINE_TUNING_SPREAD, _FINE_TUNING_ENTROPY = 1.0, 0.005
_SAMPLES = 16  # the most placements that `gdp_zero_shot` evaluates: the likeliest one, and samples


def search_gdp(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, way: str = "scratch",
    weights: Optional[str] = None, network_config: Optional[GdpConfig] = None,
    training: Optional[PpoConfig] = None) -> np.ndarray:
  """Runs GDP on a problem: samples placements and, unless `way` is "zero_shot", learns from them.

  Args:
    problem: its groups are not used.
    budget: counted from when the problem was made.
    seed: of weights and samples.
    way: "scratch" trains a network on the graph at hand, and with weights is the same as
      "fine_tune"; "fine_tune" trains the weights further; "zero_shot" learns nothing.
    weights: directory of a training run, or of its weights; optional for "scratch" alone (the
      registry of methods refuses the others without weights).
    network_config: of a network from scratch; its `max_devices` is replaced by the cluster's.
    training: settings of PPO.

  Returns:
    [N] the best placement that the problem has seen.

  Raises:
    PlacementError: there are no such weights, or they are for fewer devices.
  """
  if way == "scratch" and weights is not None:
    way = "fine_tune"
  # Two independent seeds, so that weights and samples do not share random numbers.
  weight_seed, sample_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
  nodes = node_problem(problem)
  if weights is None:
    network = GdpNetwork(
        dataclasses.replace(network_config or GdpConfig(), max_devices=nodes.num_devices),
        weight_seed)
  else:
    network = load_network(weights)
  inputs = node_inputs(GroupedGraph.of(nodes), network.config.max_devices)
  policy = GdpPolicy([inputs], network)
  left = nodes.search_log.remaining_evaluations(budget)  # evaluations; None without such a limit
  if way == "zero_shot":
    samples = _SAMPLES if left is None else min(_SAMPLES, left)
    # The likeliest placement is evaluated first, then samples: [1 + samples, M].
    placements = policy.greedy()[None]
    if samples > 1:
      sampled, _ = policy.sample(np.random.default_rng(sample_seed), samples - 1)
      placements = np.concatenate([placements, sampled])
    nodes.evaluate(placements)
    return problem.search_log.best_known
  training = training or PpoConfig()
  if way == "fine_tune":
    training = dataclasses.replace(training, entropy=_FINE_TUNING_ENTROPY)
    policy.soften(_FINE_TUNING_SPREAD)  # logits are then close enough for exploration
  # One evaluation is kept for the likeliest placement, which samples of large graphs miss.
  most = None if left is None else max(1, left - 1)
  part = dataclasses.replace(
      budget, max_evaluations=None if most is None else nodes.search_log.evaluations + most)
  environment = search_environment(nodes, training, part)
  # The learner samples a batch, evaluates it and updates, until its part of the budget is used up.
  learner = GdpLearner(policy, training, sample_seed, environment)
  search(nodes, learner, part)
  # Without a limit (None) or with one evaluation left: evaluate the likeliest placement.
  if nodes.search_log.remaining_evaluations(budget) != 0:
    nodes.evaluate(policy.greedy())
  return problem.search_log.best_known
