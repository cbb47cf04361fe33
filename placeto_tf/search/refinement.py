"""Refining at op level: moves chains and ops at the boundaries between devices.

A placement of groups can only be cut where groups end, so gains are left at these borders. This
search looks at colocated sets of ops that exchange data with another device, and at the chains
that they are part of, and moves them to that device.

Legend: N ops, S colocated sets, D devices.
"""

from __future__ import annotations

import random
from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.method import AutoPart, Kind, Method, Stage, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import Units
from placeto_tf.search.starts import best_start

DEFAULT_BUDGET = Budget(max_evaluations=10_000)
CHAIN = 16  # sets in a chain, at most
_BATCH = 8  # moves simulated side by side; fixed, so that results do not depend on the machine

Move = Tuple[Tuple[int, ...], int]  # sets, device


def refine(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """[N] the problem's best placement after boundary moves, until none improves it.

  Starts from the best simple placement where nothing has been evaluated yet.
  """
  budget = budget or DEFAULT_BUDGET
  current, objective_us = best_start(problem, budget, seed)
  if problem.account.exhausted(budget):
    return best_so_far(problem, current)
  sets = Units(problem, problem.graph.colocation)
  rng = random.Random(seed)
  improved = bool(sets.movable)
  while improved and not problem.account.exhausted(budget):
    improved = False
    moves = boundary_moves(sets, sets.devices(current))
    rng.shuffle(moves)
    while moves and not problem.account.exhausted(budget):
      left = problem.account.remaining_evaluations(budget)
      count = _BATCH if left is None else min(_BATCH, left)
      batch, moves = moves[:count], moves[count:]
      placements = np.repeat(current[None], len(batch), axis=0)
      for row, (members, device) in zip(placements, batch):
        row[np.concatenate([sets.ops[s] for s in members])] = device
      found_us = problem.evaluate_ops(placements).objective_us
      b = int(found_us.argmin())
      if found_us[b] < objective_us:
        current, objective_us, improved = placements[b].copy(), float(found_us[b]), True
  return best_so_far(problem, current)


def boundary_moves(sets: Units, devices: List[int]) -> List[Move]:
  """All moves of sets, and of the chains they are in, to a device they exchange data with.

  Args:
    sets: the colocated sets.
    devices: [S] where they are.
  """
  moves: List[Move] = []
  known = set()
  for s in sets.movable:
    targets = {devices[v] for v in sets.neighbours[s]} - {devices[s]}
    for device in sorted(targets):
      for members in {(s,), _chain(sets, devices, s, device)}:
        move = (members, device)
        if move not in known and all(sets.allowed_sets[v] >> device & 1 for v in members):
          known.add(move)
          moves.append(move)
  return sorted(moves)


def _chain(sets: Units, devices: List[int], s: int, device: int) -> Tuple[int, ...]:
  """The chain of sets that starts at `s`, on its device and leading away from `device`."""
  members, at = [s], s
  while len(members) < CHAIN:
    onward = [
        v for v in sets.neighbours[at] if devices[v] == devices[s] and v not in members]
    if len(onward) != 1 or not sets.allowed_sets[onward[0]] >> device & 1:
      break
    at = onward[0]
    members.append(at)
  return tuple(sorted(members))


# A descent that ended in a local optimum is not repeated from it.
METHODS = (
    Method("refine", Kind.SEARCH, plain(refine), rank=2,
           auto=AutoPart(Stage.SEARCH, share=0.5, repeats=False)),)
