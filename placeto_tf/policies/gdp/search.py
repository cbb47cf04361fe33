"""Runs GDP on a problem: from scratch, or with weights trained on other graphs.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacementError
from placeto_tf.policies.gdp.learner import GdpLearner, PpoConfig
from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import node_inputs, node_problem
from placeto_tf.policies.gdp.policy import GdpPolicy, load_network
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot import search, search_environment

WAYS = ("scratch", "zero_shot", "fine_tune")


@dataclasses.dataclass(frozen=True)
class GdpSearch:
  """GDP's choices.

  Attributes:
    network: used when it starts from scratch; its `max_devices` is the cluster's.
    training, fine_tuning: how it learns from scratch, and from given weights, whose training ended
      with little exploration.
    fine_tune_updates: the most updates; 50 in the paper. With None the budget alone limits them, so
      it evaluates as many placements as any other method.
    fine_tuning_spread: how far logits lie apart at most when fine-tuning begins: training ends with
      all nodes sure of their devices, and from there nothing is explored.
    draws: placements that `gdp_zero_shot` evaluates at most: the likeliest, and samples.
  """

  network: GdpConfig = GdpConfig()
  training: PpoConfig = PpoConfig()
  fine_tuning: PpoConfig = PpoConfig(entropy=0.005)
  fine_tune_updates: Optional[int] = None
  fine_tuning_spread: float = 1.0
  order: str = "main"
  joint: bool = True
  draws: int = 16


def search_gdp(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, way: str = "scratch",
    weights: Optional[str] = None, config: Optional[GdpSearch] = None,
    root_dir: Optional[str] = None) -> np.ndarray:
  """[N] the best placement the problem has seen, after GDP has worked on it.

  Args:
    problem: its groups are not used.
    budget: counted from when the problem was made.
    seed: of weights and draws.
    way: "scratch" trains a network on the graph at hand, and with weights is the same as
      "fine_tune"; "fine_tune" trains the weights further, for `fine_tune_updates` at most;
      "zero_shot" learns nothing.
    weights: directory of a training run, or of its weights; only "scratch" does without.
    config: the choices.
    root_dir: as for `one_shot.search`.

  Raises:
    PlacementError: there are no such weights, or they are for fewer devices.
  """
  if way not in WAYS:
    raise PlacementError(f"way is {way!r}; expected one of {', '.join(WAYS)}")
  if weights is None and way != "scratch":
    raise PlacementError(
        f"way {way!r} of GDP needs weights, the directory of a run of scripts/train.py "
        "--policy=gdp, or of its weights")
  config = config or GdpSearch()
  if way == "scratch" and weights is not None:
    way = "fine_tune"
  weight_seed, draw_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
  nodes = node_problem(problem, config.order)
  if weights is None:
    network = GdpNetwork(
        dataclasses.replace(config.network, max_devices=nodes.num_devices), weight_seed)
  else:
    network = load_network(weights)
  inputs = node_inputs(GroupedGraph.of(nodes), network.config.max_devices)
  policy = GdpPolicy([inputs], network, config.joint)
  left = nodes.account.remaining_evaluations(budget)
  if way == "zero_shot":
    draws = config.draws if left is None else min(config.draws, left)
    _draw(nodes, policy, max(1, draws), draw_seed)
    return problem.account.best_known
  training = config.training
  if way == "fine_tune":
    training = config.fine_tuning
    policy.soften(config.fine_tuning_spread)
  # One evaluation is kept for the likeliest devices, which samples miss on graphs of many nodes.
  most = None if left is None else max(1, left - 1)
  if way == "fine_tune" and config.fine_tune_updates is not None:
    updates = config.fine_tune_updates * training.batch_size
    most = updates if most is None else min(most, updates)
  part = dataclasses.replace(
      budget, max_evaluations=None if most is None else nodes.account.evaluations + most)
  environment = search_environment(nodes, training, part)
  learner = GdpLearner(policy, training, draw_seed, environment)
  search(nodes, learner, environment, part, root_dir=root_dir)
  if nodes.account.remaining_evaluations(budget) != 0:
    nodes.evaluate(policy.greedy())
  return problem.account.best_known


def _draw(nodes: PlacementProblem, policy: GdpPolicy, count: int, seed: int) -> None:
  """Evaluates the likeliest devices, and samples: `count` placements in all."""
  placements = policy.greedy()[None]
  if count > 1:
    drawn, _ = policy.draw(np.random.default_rng(seed), count - 1)
    placements = np.concatenate([placements, drawn])
  nodes.evaluate(placements)
