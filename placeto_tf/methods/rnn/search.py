"""Runs the RNN-based placer on a problem.

Legend: N ops.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_graph_policies import RnnSearch, rnn_policy, seeds
from placeto_tf.training.one_shot import Progress, search, search_trainer


def search_rnn(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    config: Optional[RnnSearch] = None, root_dir: Optional[str] = None,
    progress: Optional[Progress] = None, weights: Optional[str] = None) -> np.ndarray:
  """[N] the best placement the problem has seen, after training the RNN-based placer on it.

  Args:
    problem: its own groups are not used, but the colocation heuristic's.
    budget: counted from the making of the problem.
    seed: of weights and draws.
    config: the choices.
    root_dir, progress: as for `one_shot.search`.
    weights: not used: they would be of one graph.
  """
  del weights
  config = config or RnnSearch()
  weight_seed, draw_seed = seeds(seed)
  grouped, policy = rnn_policy(problem, config, weight_seed)
  trainer = search_trainer(grouped, policy, config.training, budget, draw_seed)
  search(grouped, trainer, budget, root_dir=root_dir, progress=progress)
  return problem.best_known
