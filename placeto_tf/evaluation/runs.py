"""One run of a method, as an evaluation makes it.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.evaluation.evaluation_config import EvaluationConfig
from placeto_tf.placing import learned_groups, registry, running
from placeto_tf.problem.executor import Shared
from placeto_tf.search.islands import Islands

Key = Tuple[str, str, str, int]  # graph, cluster, method, seed


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
  """What one run found.

  Attributes:
    placement: [N] int32.
    start_us: step time of where it started, where that was there before it began.
    evaluations, seconds: it used.
    history: of the problem.
  """

  placement: np.ndarray
  start_us: Optional[float]
  evaluations: int
  seconds: float
  history: List[Tuple[int, float, float]]


def run(shared: Shared, key: Key, config: EvaluationConfig, threads: int) -> Found:
  """One run; it writes nothing, for it may be made on another machine, and more than once.

  Args:
    shared: (problem, start): where the run starts, [N], if that is given.
    key: of the run.
    config: of the evaluation.
    threads: on which it simulates.
  """
  problem, start = shared.get()
  problem = problem.renewed()
  problem.simulator.num_threads = threads
  _, _, name, seed = key
  method, budget = registry.find(name), config.budget
  running.prepare(problem, method, budget, seed, start=start)
  start_us = None
  if problem.account.best_placement is not None:
    start_us = float(problem.simulator.simulate(problem.account.best_placement).step_time_us)
  if config.grouping == learned_groups.LEARNED and method.kind.takes_start:
    problem = learned_groups.with_learned_groups(problem, budget, seed)
  running.run(problem, method, budget, seed, weights=config.weights_of(method),
              islands=Islands(config.islands))
  account = problem.account
  return Found(
      account.best_known, start_us, account.evaluations, account.seconds, account.history)
