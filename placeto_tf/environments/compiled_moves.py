"""Compiled moves: the moves of a level, simulated in the order of their scores.

Dimensions: N ops, G groups, M groups that are offered (M <= G), D devices.
"""

from __future__ import annotations

import math

import numpy as np

from placeto_tf.problem.compiled_evaluation import evaluate, over
from placeto_tf.simulation.compiling import compiled, part

NONE_LEFT, BLOCK_OVER, TAKEN = range(3)  # the three outcomes of `try_moves`


@compiled(nogil=True, _nrt=False)
def try_moves(
    scores, some, group_of_op, groups, failures, untried, objective_us, temperature, rng,
    evaluator):
  """Evaluates moves in the order of their scores, until one makes the placement no worse.

  Args:
    scores: [M, D] float32; -inf for moves that must not be tried.
    some: [M] int32 groups of the rows of `scores`.
    group_of_op: [N] int32; groups: [G] int32 devices.
    failures: [G, D] float32; untried: [G, D] bool.
    objective_us: of the placement.
    temperature: of the samples; 0 takes the best move.
    rng: decides the samples.
    evaluator: `Evaluator`; its row is the placement.

  Returns:
    (group, device, objective_us) of the move that was kept, and the outcome.
  """
  row = evaluator.row[0]
  while not over(evaluator):
    if not _any_left(scores):  # and nothing is sampled
      return -1, -1, objective_us, NONE_LEFT
    best, best_i, best_device = np.float32(-np.inf), -1, -1
    for i in range(scores.shape[0]):
      for d in range(scores.shape[1]):
        value = scores[i, d]
        # Gumbel noise on scores samples from their softmax at this temperature.
        if temperature > 0:
          value += np.float32(temperature * _gumbel(rng))
        if value > best:
          best, best_i, best_device = value, i, d
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
def _any_left(scores):
  """Returns whether any score [M, D] is above -inf."""
  for i in range(scores.shape[0]):
    for d in range(scores.shape[1]):
      if scores[i, d] > -np.inf:
        return True
  return False


@part
def _gumbel(rng):
  """Returns a sample as numpy's `Generator.gumbel` makes it."""
  u = 1.0 - rng.random()  # in (0, 1], and 1 is rejected: log(-log(1)) is infinite
  while u >= 1.0:
    u = 1.0 - rng.random()
  return -math.log(-math.log(u))


@part
def _put(placement, group_of_op, group, device):
  """Puts a group on a device in a placement [N]."""
  for op in range(placement.shape[0]):
    if group_of_op[op] == group:
      placement[op] = device
