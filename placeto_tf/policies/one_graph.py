"""Policies that learn one graph from scratch (the RNN-based and the hierarchical one).

The folder of such a policy declares a `OneGraphPolicy`, whose `place` is its method: the policy is
trained on the graph until the budget is used up, and the best placement on the way is the result.

Dimensions: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Tuple

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot import ReinforceLearner, search, search_environment
from placeto_tf.training.one_shot_policy import OneShotPolicy


@dataclasses.dataclass(frozen=True)
class OneGraphPolicy:
  """A policy that is made for one graph.

  Attributes:
    options: the policy's configuration; its field `training` is a `ReinforceConfig`.
    make: (problem, options, seed of weights) -> the problem in the policy's groups, and the policy.
  """

  options: Any
  make: Callable[[PlacementProblem, Any, int], Tuple[PlacementProblem, OneShotPolicy]]

  def place(
      self, problem: PlacementProblem, budget: Budget, seed: int = 0, *, config: Any = None
  ) -> np.ndarray:
    """Trains a policy on a problem until the budget is used up.

    Args:
      problem: its own groups are not used.
      budget: counted from when the problem was made.
      seed: of weights and samples.
      config: the policy's configuration, instead of `options`.

    Returns:
      [N] the best placement that the problem has seen.
    """
    options = config or self.options
    # Two independent seeds, of weights and of samples.
    weights, samples = np.random.SeedSequence(seed).generate_state(2).tolist()
    # The policy makes its own groups; both problems share one search log and one budget.
    grouped, policy = self.make(problem, options, weights)
    environment = search_environment(
        grouped, options.training, budget, decisions=policy.decisions,
        placements=policy.placements)
    learner = ReinforceLearner(policy, environment, options.training, samples)
    search(grouped, learner, budget)
    return problem.search_log.best_known
