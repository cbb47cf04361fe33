"""Compiled moves: the moves of a level, simulated in the order of their scores.

Dimensions: N ops, G groups, M groups that are offered (M <= G), D devices.
"""

from __future__ import annotations

import numpy as np

from placeto_tf.problem.compiled_evaluation import evaluate, over
from placeto_tf.simulation.compiling import compiled, part

NONE_LEFT, BLOCK_OVER, TAKEN = range(3)  # the three outcomes of `try_moves`


@compiled(nogil=True, _nrt=False)
def try_moves(
    scores, some, group_of_op, groups, failures, untried, objective_us, evaluator):
  """Evaluates moves in the order of their scores, until one makes the placement no worse.

  Args:
    scores: [M, D] float32; -inf for moves that must not be tried.
    some: [M] int32 groups of the rows of `scores`.
    group_of_op: [N] int32; groups: [G] int32 devices.
    failures: [G, D] float32; untried: [G, D] bool.
    objective_us: of the placement.
    evaluator: `Evaluator`; its row is the placement.

  Returns:
    (group, device, objective_us) of the move that was kept, and the outcome.
  """
  row = evaluator.row[0]
  while not over(evaluator):
    best, best_i, best_device = np.float32(-np.inf), -1, -1
    for i in range(scores.shape[0]):
      for d in range(scores.shape[1]):
        if scores[i, d] > best:
          best, best_i, best_device = scores[i, d], i, d
    if best_i < 0:
      return -1, -1, objective_us, NONE_LEFT
    group = some[best_i]
    # Marks the move as tried from this placement; even if kept, it counts as a failure from now on.
    scores[best_i, best_device], untried[group, best_device] = -np.inf, False
    failures[group, best_device] += 1
    _put(row, group_of_op, group, best_device)
    now_us = evaluate(evaluator)
    if now_us <= objective_us:
      return group, best_device, now_us, TAKEN
    # The placement got worse: undo the move, and go on with the next best one.
    _put(row, group_of_op, group, groups[group])
  return -1, -1, objective_us, BLOCK_OVER


@part
def _put(placement, group_of_op, group, device):
  """Puts a group on a device in a placement [N]."""
  for op in range(placement.shape[0]):
    if group_of_op[op] == group:
      placement[op] = device
