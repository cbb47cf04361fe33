"""The RNN-based placer as a method and for `scripts/train.py`."""

from __future__ import annotations

import dataclasses
from typing import Tuple

from placeto_tf.grouping import group_ops
from placeto_tf.policies.one_graph import OneGraphPolicy
from placeto_tf.policies.rnn.policy import RnnConfig, RnnPolicy
from placeto_tf.policies.sequence_placer import PlacerConfig
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot import ReinforceConfig


@dataclasses.dataclass(frozen=True)
class RnnSearch:
  """The RNN-based placer's choices; docs/results/rnn_and_hierarchical.md lists what was tried.

  Attributes:
    max_groups: of the colocation heuristic; 83 to 280 in the paper.
    policy, training: see there.
  """

  max_groups: int = 128
  policy: RnnConfig = RnnConfig(placer=PlacerConfig(hidden=64))
  training: ReinforceConfig = ReinforceConfig(learning_rate=4e-3, final_learning_rate=4e-3)


def rnn_policy(
    problem: PlacementProblem, config: RnnSearch, seed: int
) -> Tuple[PlacementProblem, RnnPolicy]:
  """The problem in the groups of the colocation heuristic, and an untrained policy for it."""
  grouped = problem.regrouped(group_ops(
      problem.graph, problem.costs, problem.allowed_ops, max_groups=config.max_groups,
      method="single_consumer"))
  return grouped, RnnPolicy(grouped, config.policy, seed)


POLICY = OneGraphPolicy("rnn", RnnSearch(), rnn_policy)
