"""The policies that are made for one graph: the RNN-based and the hierarchical one.

Here are their choices, and functions that make a policy for a problem.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Tuple

import numpy as np

from placeto_tf.grouping import group_ops
from placeto_tf.policies.hierarchical.policy import HierarchicalConfig, HierarchicalPolicy
from placeto_tf.policies.rnn.policy import RnnConfig, RnnPolicy
from placeto_tf.policies.sequence_placer import PlacerConfig
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot import OneShotConfig


@dataclasses.dataclass(frozen=True)
class RnnSearch:
  """The RNN-based placer's choices; docs/results/rnn_and_hierarchical.md lists what was tried.

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
  """The hierarchical placer's choices; docs/results/rnn_and_hierarchical.md lists others tried."""

  policy: HierarchicalConfig = HierarchicalConfig()
  training: OneShotConfig = OneShotConfig(
      baseline="batch", learning_rate=1e-2, final_learning_rate=4e-3, scale_advantages=True)


def rnn_policy(
    problem: PlacementProblem, config: RnnSearch, seed: int
) -> Tuple[PlacementProblem, RnnPolicy]:
  """The problem in the groups of the colocation heuristic, and an untrained policy for it."""
  grouped = problem.regrouped(group_ops(
      problem.graph, problem.costs, problem.allowed_ops, max_groups=config.max_groups,
      method="single_consumer"))
  return grouped, RnnPolicy(grouped, config.policy, seed)


def hierarchical_policy(
    problem: PlacementProblem, config: HierarchicalSearch, seed: int
) -> Tuple[PlacementProblem, HierarchicalPolicy]:
  """The problem with units for groups, and an untrained policy for it."""
  units = problem.regrouped(
      group_ops(problem.graph, problem.costs, problem.allowed_ops, method="none"))
  return units, HierarchicalPolicy(units, config.policy, seed)


# Name -> the type of its choices, and the function that makes the policy for a problem.
POLICIES: Mapping[str, Tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rnn": (RnnSearch, rnn_policy), "hierarchical": (HierarchicalSearch, hierarchical_policy)}


def seeds(seed: int) -> Tuple[int, int]:
  """Seeds of a policy's weights, and of its draws."""
  return tuple(np.random.SeedSequence(seed).generate_state(2).tolist())
