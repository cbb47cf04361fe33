"""Runs the hierarchical placer on a problem, for its placements or for its groups.

Legend: N ops.
"""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.policies.hierarchical.policy import HierarchicalPolicy
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_graph_policies import HierarchicalSearch, hierarchical_policy, seeds
from placeto_tf.training.one_shot import Progress, search, search_trainer


def search_hierarchical(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    config: Optional[HierarchicalSearch] = None, root_dir: Optional[str] = None,
    progress: Optional[Progress] = None, weights: Optional[str] = None) -> np.ndarray:
  """[N] the best placement the problem has seen, after training the hierarchical placer on it.

  Args:
    problem: its own groups are not used; grouping is learned.
    budget: counted from the making of the problem.
    seed: of weights and draws.
    config: the choices.
    root_dir, progress: as for `one_shot.search`.
    weights: not used: they would be of one graph.
  """
  del weights
  _train_hierarchical(problem, budget, seed, config, root_dir, progress)
  return problem.best_known


def learn_grouping(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    config: Optional[HierarchicalSearch] = None, root_dir: Optional[str] = None,
    progress: Optional[Progress] = None) -> Grouping:
  """The groups that the hierarchical placer's grouper, trained on the problem, ends with.

  Ops of a group that may not use the same devices are split again. Arguments as for
  `search_hierarchical`.
  """
  units, policy = _train_hierarchical(problem, budget, seed, config, root_dir, progress)
  _, pattern = np.unique(units.allowed, axis=0, return_inverse=True)
  movable = units.allowed.sum(axis=1) > 1
  labels = pattern.reshape(-1) * (policy.num_groups + 1) + np.where(
      movable, 1 + policy.likeliest_groups(), 0)
  return number_groups(units.grouping.expand(labels), topological_rank(problem.graph))


def _train_hierarchical(
    problem: PlacementProblem, budget: Budget, seed: int, config: Optional[HierarchicalSearch],
    root_dir: Optional[str], progress: Optional[Progress]
) -> Tuple[PlacementProblem, HierarchicalPolicy]:
  """The problem with units for groups, and the policy trained on it."""
  config = config or HierarchicalSearch()
  weight_seed, draw_seed = seeds(seed)
  units, policy = hierarchical_policy(problem, config, weight_seed)
  trainer = search_trainer(units, policy, config.training, budget, draw_seed)
  search(units, trainer, budget, root_dir=root_dir, progress=progress)
  return units, policy
