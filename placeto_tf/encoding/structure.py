"""The acyclic structure of a graph of groups: which edges it keeps.

Ops that must share a device are one unit: a variable, the ops that read it, and the op that
applies its gradient at the end of the step. A group that holds such a unit both feeds the forward
pass and is fed by the backward one, so in a training graph nearly all groups lie on one cycle and
each is an ancestor of all others. So policies see only the edges that agree with the order of the
groups' main ops, the ops that compute longest; an edge that runs against that order, such as a
gradient's into the update of a variable, is left out. Costs and simulation keep every edge.

Legend: G groups, E edges between groups.
"""

from __future__ import annotations

import numpy as np


def agreeing(positions: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
  """[E] bool: edges whose source comes before their target.

  Args:
    positions: [G] distinct numbers, each group's place in the order.
    sources, targets: [E] int32 groups.
  """
  return positions[sources] < positions[targets]


def reachable(num_groups: int, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
  """[G, G] bool: row g marks the groups to which a path of at least one edge leads from g.

  A group on a cycle reaches itself.
  """
  reach = np.zeros((num_groups, num_groups), dtype=bool)
  reach[sources, targets] = True
  while True:  # each round doubles the length of paths
    as_numbers = reach.astype(np.float32)
    longer = reach | (as_numbers @ as_numbers > 0)
    if (longer == reach).all():
      return reach
    reach = longer
