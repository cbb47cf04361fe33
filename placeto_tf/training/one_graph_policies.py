"""The one-shot rivals as methods: a policy made for one graph, trained on it from scratch.

What other methods have found is no start for them: they draw whole placements.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

import numpy as np

from placeto_tf.grouping import group_ops
from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.policies.hierarchical.policy import HierarchicalConfig, HierarchicalPolicy
from placeto_tf.policies.rnn.policy import RnnConfig, RnnPolicy
from placeto_tf.policies.sequence_placer import PlacerConfig
from placeto_tf.problem.placement_problem import Budget, PlacementProblem
from placeto_tf.training.one_shot import OneShotConfig, Progress, search, search_trainer


@dataclasses.dataclass(frozen=True)
class RnnSearch:
  """The RNN-based placer's choices; policies/README.md says what was tried.

  Attributes:
    max_groups: of the colocation heuristic; 83 to 280 in the paper.
    policy, training: see there.
  """

  max_groups: int = 128
  policy: RnnConfig = RnnConfig(placer=PlacerConfig(hidden=64))
  training: OneShotConfig = OneShotConfig(
      learning_rate=4e-3, final_learning_rate=4e-3, scale_advantages=True)


@dataclasses.dataclass(frozen=True)
class HierarchicalSearch:
  """The hierarchical placer's choices; policies/README.md says what was tried."""

  policy: HierarchicalConfig = HierarchicalConfig()
  training: OneShotConfig = OneShotConfig(
      baseline="batch", learning_rate=1e-2, final_learning_rate=4e-3, scale_advantages=True)


def search_rnn(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    config: Optional[RnnSearch] = None, root_dir: Optional[str] = None,
    progress: Optional[Progress] = None) -> np.ndarray:
  """[N] the best placement the problem has seen, after training the RNN-based placer on it.

  Args:
    problem: its own groups are not used, but the colocation heuristic's.
    budget: counted from the making of the problem.
    seed: of weights and draws.
    config: the choices.
    root_dir, progress: as for `one_shot.search`.
  """
  config = config or RnnSearch()
  weights, draws = seeds(seed)
  grouped, policy = rnn_policy(problem, config, weights)
  trainer = search_trainer(grouped, policy, config.training, budget, draws)
  search(grouped, trainer, budget, root_dir=root_dir, progress=progress)
  return problem.best_placement


def rnn_policy(
    problem: PlacementProblem, config: RnnSearch, seed: int
) -> Tuple[PlacementProblem, RnnPolicy]:
  """The problem in the groups of the colocation heuristic, and an untrained policy for it."""
  grouped = problem.regrouped(group_ops(
      problem.graph, problem.costs, problem.allowed_ops, max_groups=config.max_groups,
      method="single_consumer"))
  return grouped, RnnPolicy(grouped, config.policy, seed)


def search_hierarchical(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    config: Optional[HierarchicalSearch] = None, root_dir: Optional[str] = None,
    progress: Optional[Progress] = None) -> np.ndarray:
  """[N] the best placement the problem has seen, after training the hierarchical placer on it.

  Arguments as for `search_rnn`; grouping is learned.
  """
  _train_hierarchical(problem, budget, seed, config, root_dir, progress)
  return problem.best_placement


def learn_grouping(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    config: Optional[HierarchicalSearch] = None, root_dir: Optional[str] = None,
    progress: Optional[Progress] = None) -> Grouping:
  """The groups that the hierarchical placer's grouper, trained on the problem, ends with.

  Ops of a group that may not use the same devices are split again. Arguments as for `search_rnn`.
  """
  units, policy = _train_hierarchical(problem, budget, seed, config, root_dir, progress)
  _, pattern = np.unique(units.allowed, axis=0, return_inverse=True)
  movable = units.allowed.sum(axis=1) > 1
  labels = pattern.reshape(-1) * (policy.config.num_groups + 1) + np.where(
      movable, 1 + policy.likeliest_groups(), 0)
  return number_groups(units.grouping.expand(labels), topological_rank(problem.graph))


def _train_hierarchical(problem, budget, seed, config, root_dir, progress):
  """The problem with units for groups, and the policy trained on it."""
  config = config or HierarchicalSearch()
  weights, draws = seeds(seed)
  units, policy = hierarchical_policy(problem, config, weights)
  trainer = search_trainer(units, policy, config.training, budget, draws)
  search(units, trainer, budget, root_dir=root_dir, progress=progress)
  return units, policy


def hierarchical_policy(
    problem: PlacementProblem, config: HierarchicalSearch, seed: int
) -> Tuple[PlacementProblem, HierarchicalPolicy]:
  """The problem with units for groups, and an untrained policy for it."""
  units = problem.regrouped(
      group_ops(problem.graph, problem.costs, problem.allowed_ops, method="none"))
  return units, HierarchicalPolicy(units, config.policy, seed)


METHODS = {"rnn": search_rnn, "hierarchical": search_hierarchical}


def seeds(seed: int) -> Tuple[int, int]:
  """Of a policy's weights, and of its draws."""
  return tuple(np.random.SeedSequence(seed).generate_state(2).tolist())
