"""HEFT: heterogeneous earliest finish time.

Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing" (2002). Ops are placed by falling upward rank, each on the device where it
would finish first, in the first gap that is long enough.
"""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from placeto_tf.problem.method import Kind, Method, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.list_scheduling import Schedule, better_plan, upward_ranks


def plan(problem: PlacementProblem, *, links: bool) -> np.ndarray:
  """Makes a plan: places ops by falling upward rank, each on the device where it finishes first.

  Args:
    problem: of N ops.
    links: whether transfers queue on links; False computes times as published, without queues.

  Returns:
    [N] int32, device of each op.
  """
  schedule = Schedule(problem, links=links)
  ranks = upward_ranks(schedule, problem)
  position = problem.graph.topological_rank
  # Ops that cost nothing tie with their consumers: producers go first.
  for op in sorted(range(len(ranks)), key=lambda op: (-ranks[op], position[op])):
    best: Optional[Tuple[float, int, float]] = None
    for d in schedule.candidates(op):
      ready = schedule.data_ready_us(op, d)
      # Insertion policy: the first gap that holds the op, even before ops placed earlier.
      start = schedule.devices[d].earliest(ready, schedule.occupied_us(op, d))
      finish = start + schedule.compute_us[op][d]
      # Ties keep the candidate with the lower index.
      if best is None or finish < best[0]:
        best = (finish, d, ready)
    assert best is not None  # every op may run somewhere
    # `place` books transfers and finds the slot again from the arrival of the inputs.
    schedule.place(op, best[1], best[2])
  return np.array(schedule.device, dtype=np.int32)


schedule_heft = better_plan(plan)
METHODS = (
    Method("heft", Kind.CONSTRUCTION, unseeded(schedule_heft), rank=3, start_rank=3),
)
