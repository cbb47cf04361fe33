"""Trains the RNN-based or the hierarchical placer on a problem, for its placements or its groups.

Legend: N ops.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np

from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.policies.one_graph import POLICIES, HierarchicalSearch, seeds
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot import search, search_trainer


def search_one_graph(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, policy: str,
    config: Any = None, root_dir: Optional[str] = None) -> np.ndarray:
  """[N] the best placement the problem has seen, after training a policy on it.

  Args:
    problem: its own groups are not used: the RNN-based placer takes those of the colocation
      heuristic, and the hierarchical placer learns its groups.
    budget: counted from when the problem was made.
    seed: of weights and draws.
    policy: a name in `one_graph.POLICIES`.
    config: the policy's choices, such as `RnnSearch`.
    root_dir: as for `one_shot.search`.
  """
  _train(problem, budget, seed, policy, config, root_dir)
  return problem.account.best_known


def learn_grouping(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    config: Optional[HierarchicalSearch] = None, root_dir: Optional[str] = None) -> Grouping:
  """The groups that the hierarchical placer's grouper ends with, trained on the problem.

  Ops of a group that may not use the same devices are split again. Arguments are those of
  `search_one_graph`.
  """
  units, policy = _train(problem, budget, seed, "hierarchical", config, root_dir)
  _, pattern = np.unique(units.allowed, axis=0, return_inverse=True)
  movable = units.allowed.sum(axis=1) > 1
  labels = pattern.reshape(-1) * (policy.num_groups + 1) + np.where(
      movable, 1 + policy.likeliest_groups(), 0)
  return number_groups(units.grouping.expand(labels), topological_rank(problem.graph))


def _train(
    problem: PlacementProblem, budget: Budget, seed: int, name: str, config: Any,
    root_dir: Optional[str]) -> Tuple[PlacementProblem, Any]:
  """The problem in the groups of the policy, and the policy trained on it."""
  search_type, make_policy = POLICIES[name]
  config = config or search_type()
  weight_seed, draw_seed = seeds(seed)
  grouped, policy = make_policy(problem, config, weight_seed)
  trainer = search_trainer(grouped, policy, config.training, budget, draw_seed)
  search(grouped, trainer, budget, root_dir=root_dir)
  return grouped, policy
