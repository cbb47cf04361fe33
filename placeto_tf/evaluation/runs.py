"""One run of a method, as an evaluation makes it.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation.evaluation_config import EvaluationConfig
from placeto_tf.graphs import user_files
from placeto_tf.placing import registry, running
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
  running.run(problem, method, budget, seed, weights=config.weights_of(method),
              islands=Islands(config.islands))
  account = problem.account
  return Found(
      account.best_known, start_us, account.evaluations, account.seconds, account.history)


def read_history(row: Dict[str, Any], out: str) -> List[List[float]]:
  """[evaluations, seconds, objective in us] at each improvement of a row's run.

  Raises:
    PlacetoError: the file is missing or damaged.
  """
  path = os.path.join(out, "histories", os.path.basename(row["placement"]))
  remedy = "delete the row to run it again"
  history = user_files.read_json(path, what="the history", remedy=remedy)
  if not isinstance(history, list) or not history or not all(
      isinstance(entry, list) and len(entry) == 3 and all(
          isinstance(value, (int, float)) for value in entry) for entry in history):
    raise PlacetoError(f"{path!r} holds something else than a history; {remedy}")
  return history
