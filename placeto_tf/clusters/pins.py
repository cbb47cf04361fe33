"""Devices that the user gives: pins of ops, the graph's own devices, and sets of devices.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import difflib
import re
from types import MappingProxyType
from typing import Dict, List, Mapping, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import find_device
from placeto_tf.errors import PlacementError, listed, option
from placeto_tf.graphs.colocation import MOVED_WITH_OTHERS
from placeto_tf.graphs.computation_graph import ComputationGraph


def narrowed_by_pins(
    graph: ComputationGraph,
    cluster: Cluster,
    allowed: np.ndarray,
    *,
    pins: Sequence[Tuple[str, str]] = (),
    sets: Mapping[str, Sequence[str]] = MappingProxyType({}),
    keep_own_devices: bool = False,
) -> Tuple[np.ndarray, np.ndarray]:
  """Restricts the devices of ops to the devices that the user gives for them.

  A pin or set of an op also holds for all ops that are colocated with it.

  Args:
    graph, cluster: of the ops and devices.
    allowed: [N, D] bool, devices that each op may use.
    pins: (regex, device) pairs; ops whose whole name matches are placed on that device.
    sets: regex -> devices; ops whose whole name matches use these devices only.
    keep_own_devices: whether ops keep the devices that the graph sets.

  Returns:
    [N, D] bool, the restricted devices; and [N] bool, the ops for which the user gives devices.

  Raises:
    PlacementError: a text is no regular expression, or matches no op; a device is not in the
      cluster; two pins contradict one another; or an op cannot run on any of its devices.
  """
  narrowed, said = allowed.copy(), np.zeros(len(allowed), dtype=bool)
  names = cluster.device_names
  # Sets of devices first: each restricts all colocated ops of the ops that match.
  for regex, devices in sets.items():
    # [D] bool, the devices of the set.
    named = np.zeros(cluster.num_devices, dtype=bool)
    named[[device_index(cluster, device) for device in devices]] = True
    matching = matching_ops(regex, graph.op_names)
    rows = np.isin(graph.colocation, graph.colocation[matching])
    narrowed[rows] &= named
    # Both sets and pins count as given by the user for all colocated ops.
    said |= rows
    for op in matching:
      if not narrowed[op].any():
        raise PlacementError(
            f"op {graph.op_names[op]!r} is allowed on {', '.join(devices)} only, by {regex!r}, but "
            f"it (or an op it is colocated with) may not run there; "
            f"{_elsewhere(cluster, allowed[op])}")
  # Op -> (device, reason), the reason for errors alone.
  pinned: Dict[int, Tuple[int, str]] = {}
  for regex, text in pins:
    device = device_index(cluster, text)
    for op in matching_ops(regex, graph.op_names):
      # Two pins of one op agree, or are an error.
      before = pinned.setdefault(op, (device, f"pin {regex!r}"))
      if before[0] != device:
        raise PlacementError(
            f"op {graph.op_names[op]!r} is put on {names[before[0]]} by {before[1]}, and on "
            f"{names[device]} by pin {regex!r}; pin it to one device")
  # Pins come before the graph's own devices.
  fixed = dict(pinned)
  if keep_own_devices:
    own = {text: device_index(cluster, text) for text in set(graph.assigned_devices) - {""}}
    # A pin of one op holds for all ops of its colocated set. TensorFlow, too, moves the ops at the
    # ends of a loop to the ops that read their values, whatever their own devices.
    labels = {int(graph.colocation[op]) for op in pinned}
    fixed.update((op, (own[text], "the graph's own device"))
                 for op, text in enumerate(graph.assigned_devices)
                 if text and graph.op_types[op] not in MOVED_WITH_OTHERS
                 and int(graph.colocation[op]) not in labels)
  # Label of a colocated set -> (device, reason); two devices for one set contradict.
  wanted: Dict[int, Tuple[int, str]] = {}
  for op, (device, reason) in fixed.items():
    label = int(graph.colocation[op])
    if wanted.setdefault(label, (device, reason))[0] != device:
      raise PlacementError(
          f"op {graph.op_names[op]!r} is put on {names[device]} by {reason}, but an op it is "
          f"colocated with on {names[wanted[label][0]]} by {wanted[label][1]}; "
          f"{_apart(graph, label)}")
    # Sets of devices restrict pins, too: a pin to a device outside an op's set is an error.
    if not narrowed[op, device]:
      raise PlacementError(
          f"op {graph.op_names[op]!r} is put on {names[device]} by {reason}, but it (or an op it "
          f"is colocated with) may not run there; {_elsewhere(cluster, narrowed[op])}"
          + ("" if op in pinned else ", or let the placement start from the graph's devices "
             "instead of keeping them (existing_devices=\"start\")"))
  # Rows of fixed sets become one-hot.
  rows = np.array([int(label) in wanted for label in graph.colocation], dtype=bool)
  narrowed[rows] = False
  # One column per row, written into rows that are all False.
  narrowed[np.flatnonzero(rows), [wanted[int(label)][0] for label in graph.colocation[rows]]] = True
  return narrowed, said | rows


def _elsewhere(cluster: Cluster, allowed: np.ndarray) -> str:
  """Returns advice that names devices to which an op can be pinned."""
  names = [name for name, may in zip(cluster.device_names, allowed) if may]
  return f"pin it to {listed(names, most=4)}"


def matching_ops(regex: str, names: Sequence[str]) -> List[int]:
  """Returns the ops whose whole names match an expression, at least one.

  The name of a layer or scope, "item_embedding", stands for its ops. Keras numbers a layer's scopes
  ("item_embedding_1"); a number is ignored if no scope has the name itself. A name with a number,
  "dense_1", can be the scope of the layer "dense", or the layer of the scope "dense_1_2".

  Args:
    regex: a Python regular expression.
    names: [N] names of the ops.

  Returns:
    Indices of the matching ops, ascending.

  Raises:
    PlacementError: the text is no regular expression, matches no name, or can be two layers.
  """
  numbered = f"(.*/)?(({regex})_[0-9]+)(/.*)?"
  for text in (regex, f"(.*/)?({regex})(/.*)?", numbered):
    try:
      pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError, TypeError) as error:
      raise PlacementError(f"{regex!r:.200} is not a regular expression ({error}); give a text: a "
                           "whole name, 'embedding/.*', or that of a layer or scope") from None
    # fullmatch: a part of a name is no match.
    matching = [op for op, name in enumerate(names) if pattern.fullmatch(name)]
    if matching and regex != text != numbered and re.search("_[0-9]+$", regex) and (
        other := next(filter(None, map(re.compile(numbered).fullmatch, names)), None)):
      raise PlacementError(
          f"{regex!r} is a scope, and may be the layer of the scope {other[2]!r}, because "
          f"Keras numbers scopes; give '(.*/)?{regex}/.*' or '(.*/)?{other[2]}/.*'")
    if matching:
      return matching
  parts = {re.sub(r"_[0-9]+$", "", part) for name in names for part in name.split("/")}
  near = difflib.get_close_matches(regex, sorted(parts), cutoff=0.5)
  raise PlacementError(
      f"{regex!r} matches none of the {len(names)} ops; give a whole name, " + (
          f"or that of a layer or scope alone, such as {listed([*map(repr, near)])}" if near else
          "'embedding/.*', or the name of a layer or scope"))


def _apart(graph: ComputationGraph, label: int) -> str:
  """Returns the remedy if ops of one colocated set are put on several devices."""
  mates = (graph.op_types[op] for op in np.flatnonzero(graph.colocation == label).tolist())
  whole = "LoopCond" in mates and graph.source is not None and not graph.source.split_loops
  return "pin them to one device" + (
      f", or load the graph with {option('split_loops', True)}: until then a loop stays on one"
      if whole else "")


def device_index(cluster: Cluster, text: str) -> int:
  """Returns the cluster's first device that agrees with a device string.

  Args:
    cluster: of D devices.
    text: a device string, which may be partial.

  Returns:
    The index of the device.

  Raises:
    PlacementError: there is no such device.
  """
  index = find_device(cluster.device_names, text)
  if index is None:
    raise PlacementError(
        f"device {text!r} is not in the cluster; expected one of {', '.join(cluster.device_names)}")
  return index
