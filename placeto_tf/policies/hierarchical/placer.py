"""The hierarchical placer as a method and for `scripts/train.py`."""

from __future__ import annotations

import dataclasses
from typing import Tuple

from placeto_tf.grouping import group_ops
from placeto_tf.policies.hierarchical.policy import HierarchicalConfig, HierarchicalPolicy
from placeto_tf.policies.one_graph import OneGraphPolicy
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot import ReinforceConfig


@dataclasses.dataclass(frozen=True)
class HierarchicalSearch:
  """The hierarchical placer's choices; docs/results/rnn_and_hierarchical.md lists others tried."""

  policy: HierarchicalConfig = HierarchicalConfig()
  training: ReinforceConfig = ReinforceConfig(
      baseline="batch", learning_rate=1e-2, final_learning_rate=4e-3)


def hierarchical_policy(
    problem: PlacementProblem, config: HierarchicalSearch, seed: int
) -> Tuple[PlacementProblem, HierarchicalPolicy]:
  """The problem with units for groups, and an untrained policy for it."""
  units = problem.regrouped(
      group_ops(problem.graph, problem.costs, problem.allowed_ops, method="none"))
  return units, HierarchicalPolicy(units, config.policy, seed)


POLICY = OneGraphPolicy("hierarchical", HierarchicalSearch(), hierarchical_policy)
