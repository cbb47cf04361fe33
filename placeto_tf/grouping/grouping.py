"""`Grouping`: a map from ops to groups, which are placed together.

Dimensions: N ops, G groups.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from placeto_tf.errors import PlacementError


@dataclasses.dataclass(frozen=True, eq=False)
class Grouping:
  """A map op -> group; groups are numbered 0..G-1 by their first op in topological order.

  Attributes:
    group_of_op: [N] int32.
  """

  group_of_op: np.ndarray  # [N]

  def __post_init__(self) -> None:
    groups = np.ascontiguousarray(self.group_of_op, dtype=np.int32)
    object.__setattr__(self, "group_of_op", groups)
    if groups.ndim != 1 or not len(groups):
      raise PlacementError(f"group_of_op has shape {groups.shape}, expected [N] with N > 0")
    if groups.min() < 0 or len(np.unique(groups)) != groups.max() + 1:
      raise PlacementError("groups must be numbered from 0 without gaps")
    groups.flags.writeable = False

  @property
  def num_groups(self) -> int:
    """G."""
    return int(self.group_of_op.max()) + 1

  @property
  def num_ops(self) -> int:
    """N."""
    return len(self.group_of_op)

  def expand(self, group_placements: np.ndarray) -> np.ndarray:
    """Converts placements of groups to placements of ops: [..., G] -> [..., N]."""
    return np.asarray(group_placements)[..., self.group_of_op]
