"""Ops that may not move: pinned by the user, or kept where the graph has them.

Legend: N ops, D devices.
"""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import find_device
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph


def narrowed_by_pins(
    graph: ComputationGraph,
    cluster: Cluster,
    allowed: np.ndarray,
    *,
    pins: Sequence[Tuple[str, str]] = (),
    keep_own_devices: bool = False,
) -> np.ndarray:
  """[N, D] `allowed`, narrowed to the devices that ops are pinned to.

  A pin also holds for all ops that are colocated with the op it names.

  Args:
    graph, cluster: of the ops and devices.
    allowed: [N, D] bool.
    pins: (regex, device) pairs; ops whose whole name matches stay on that device.
    keep_own_devices: whether ops stay where the graph has them.

  Raises:
    PlacementError: a pin is no regular expression, matches no op, names no device, contradicts
      another, or puts an op where it may not run.
  """
  fixed: Dict[int, Tuple[str, str]] = {}
  if keep_own_devices:
    own = {text: _device_name(cluster, text) for text in set(graph.assigned_devices) - {""}}
    fixed.update((op, (own[text], "the graph's own device"))
                 for op, text in enumerate(graph.assigned_devices) if text)
  pinned: Dict[int, Tuple[str, str]] = {}
  for regex, device in pins:
    name = _device_name(cluster, device)
    matching = _matching(regex, graph.op_names)
    if not matching:
      raise PlacementError(
          f"pin {regex!r} matches none of the {graph.num_ops} ops; it must match a whole name, "
          "such as 'embedding/.*'")
    for op in matching:
      before = pinned.setdefault(op, (name, f"pin {regex!r}"))
      if before[0] != name:
        raise PlacementError(
            f"op {graph.op_names[op]!r} is put on {before[0]} by {before[1]}, and on {name} by pin "
            f"{regex!r}; pin it to one device")
  fixed.update(pinned)
  if not fixed:
    return allowed
  narrowed = allowed.copy()
  column = {name: j for j, name in enumerate(cluster.device_names)}
  wanted: Dict[int, Tuple[str, str]] = {}
  for op, (device, reason) in fixed.items():
    label = int(graph.colocation[op])
    if wanted.setdefault(label, (device, reason))[0] != device:
      raise PlacementError(
          f"op {graph.op_names[op]!r} is put on {device} by {reason}, but an op it is colocated "
          f"with on {wanted[label][0]} by {wanted[label][1]}; pin them to one device")
    if not allowed[op, column[device]]:
      raise PlacementError(
          f"op {graph.op_names[op]!r} is put on {device} by {reason}, but it (or an op it is "
          "colocated with) may not run there; pin it elsewhere")
  rows = np.array([int(label) in wanted for label in graph.colocation])
  narrowed[rows] = False
  devices = [column[wanted[int(label)][0]] for label in graph.colocation[rows]]
  narrowed[np.flatnonzero(rows), devices] = True
  return narrowed


def _matching(regex: str, names: Sequence[str]) -> List[int]:
  """Indices of the names that an expression matches as a whole."""
  try:
    pattern = re.compile(regex)
  except (re.error, RecursionError, OverflowError) as error:
    raise PlacementError(f"pin {regex!r:.200} is not a regular expression: {error}") from None
  return [op for op, name in enumerate(names) if pattern.fullmatch(name)]


def _device_name(cluster: Cluster, text: str) -> str:
  index = find_device(cluster.device_names, text)
  if index is None:
    raise PlacementError(
        f"device {text!r} is not in the cluster; expected one of {', '.join(cluster.device_names)}")
  return cluster.device_names[index]
