"""Every observation shape of the published process, in one place.

A GraphTensor cannot be an observation in tf-agents. So the part that changes in an episode is
observed as dense arrays, and the network combines it with the fixed part (`encoding.GroupedGraph`).

Dimensions: B episodes side by side, G groups.

  placement  [B, G] int32    device of each group now
  current    [B, 1] int32    the group whose device the next action names
  visited    [B, G] float32  1 for groups that an action of this episode has placed
  start      [B, G] float32  start of the group's main op over the step time, in [0, 1]
  graph      [B, 1] int32    number of the graph

The network reads `start` relative to the current group's. A group's main op is the op with the
longest compute time. The first op of a group says less: it is often a variable, which starts at 0
in any placement; and the last op is often the variable's update at the end of the step.

Graphs of a family have different numbers of groups: G is the number of the largest graph, and
observations of smaller graphs are padded with 0.
"""

from __future__ import annotations

from typing import Dict

import numpy as np
from tf_agents.specs import array_spec

PLACEMENT = "placement"
CURRENT = "current"
VISITED = "visited"
START = "start"
GRAPH = "graph"


def observation_spec(
    num_groups: int, num_devices: int, num_graphs: int = 1) -> Dict[str, array_spec.ArraySpec]:
  """Returns the spec of one episode's observation, without the batch dimension.

  Args:
    num_groups: G, of the largest graph.
    num_devices: D.
    num_graphs: of the family.

  Returns:
    Name -> spec: placement [G], current [1], visited [G], start [G], graph [1].
  """
  g = num_groups

  def share(name):
    return array_spec.BoundedArraySpec((g,), np.float32, 0.0, 1.0, name=name)

  return {
      PLACEMENT: array_spec.BoundedArraySpec((g,), np.int32, 0, num_devices - 1, name=PLACEMENT),
      CURRENT: array_spec.BoundedArraySpec((1,), np.int32, 0, g - 1, name=CURRENT),
      VISITED: share(VISITED),
      START: share(START),
      GRAPH: array_spec.BoundedArraySpec((1,), np.int32, 0, num_graphs - 1, name=GRAPH),
  }


def action_spec(num_devices: int) -> array_spec.BoundedArraySpec:
  """Returns the spec of an action: a device for the current group."""
  return array_spec.BoundedArraySpec((1,), np.int32, 0, num_devices - 1, name="device")
