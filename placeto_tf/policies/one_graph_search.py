"""Trains the RNN-based or the hierarchical placer on a problem.

Legend: N ops.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from placeto_tf.policies.one_graph import POLICIES, seeds
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
  search_type, make_policy = POLICIES[policy]
  config = config or search_type()
  weight_seed, draw_seed = seeds(seed)
  grouped, network = make_policy(problem, config, weight_seed)
  trainer = search_trainer(grouped, network, config.training, budget, draw_seed)
  search(grouped, trainer, budget, root_dir=root_dir)
  return problem.account.best_known
