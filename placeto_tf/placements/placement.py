"""`Placement`: op name -> device name, the result that users keep.

`placement.json`, version 2:

  {"version": 2,
   "graph": {"fingerprint": "...", "fetches": ["train"], "shapes": {"images": [-1, 224, 224, 3]}},
   "cluster": {...}, "devices": ["/GPU:0", "/CPU:0"], "placement": {"op name": "/GPU:0"},
   "method": "auto", "seed": 0, "evaluations": 1234, "step_time_us": 1234.5,
   "lower_bound_us": 900.0, "peak_memory_bytes": {"/GPU:0": 1},
   "baselines": {"current": {"step_time_us": 2000.0, "fits": true}},
   "options": {"existing_devices": "start", "pins": {"embedding/.*": "/CPU:0"}},
   "digest": "SHA-256 of the rest"}

Readers accept a file with only `devices` and `placement`. They refuse a file with a digest that was
changed after it was written. Unknown fields are left out; a baseline without a step time has null.
`devices` are all devices of the cluster, in its order, also unused ones. `shapes` has the shapes of
feeds and variables.

Dimensions: N ops of a `ComputationGraph`, D devices.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
from typing import Any, Iterator, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.clusters import device_names
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import OpCosts
from placeto_tf.errors import PlacementError
from placeto_tf.files import outputs, user_files
from placeto_tf.graphs.collective_groups import nodes_with_members
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placements import applying, belonging, coverage, node_devices, placement_json
from placeto_tf.simulation import SimulationResult


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Placement(collections.abc.Mapping):
  """An immutable mapping from op names to device names, with its origin.

  Two placements are equal if they put the same ops on the same devices.

  Attributes:
    op_devices: op name -> device name, in the order of the graph's file.
    devices: [D] the device names to choose from.
    fingerprint: fingerprint of the graph that the placement was made for; "" if unknown.
    fetches: fetches of this graph.
    shapes: known shapes of its feeds and variables, by op.
    cluster: the cluster as JSON, or None.
    method: the method that found it, such as "auto".
    seed: of the search.
    evaluations: placements that were evaluated to find it.
    step_time_us: simulated step time.
    lower_bound_us: a lower bound of the step time of all placements on this cluster.
    peak_memory_bytes: device name -> bytes.
    baselines: method -> {"step_time_us": ..., "fits": ...}.
    replicas: the replicas that divide the batch, for a placement of several replicas.
    options: constraints on the search: its pins, and the graph's own devices.
  """

  op_devices: Mapping[str, str]
  devices: Tuple[str, ...]  # [D]
  fingerprint: str = ""
  fetches: Tuple[str, ...] = ()
  shapes: Mapping[str, Tuple[int, ...]] = dataclasses.field(default_factory=dict)
  cluster: Optional[Mapping[str, Any]] = None
  method: str = ""
  seed: Optional[int] = None
  evaluations: Optional[int] = None
  step_time_us: Optional[float] = None
  lower_bound_us: Optional[float] = None
  peak_memory_bytes: Mapping[str, float] = dataclasses.field(default_factory=dict)
  baselines: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
  replicas: Optional[int] = None
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    known = set(self.devices)
    if not known:
      raise PlacementError("the placement has no devices; expected at least one device name")
    if len(known) != len(self.devices):
      twice = next(name for i, name in enumerate(self.devices) if name in self.devices[:i])
      raise PlacementError(f"device {twice!r} appears twice; give each device its own name")
    for op, device in self.op_devices.items():
      if device not in known:
        raise PlacementError(
            f"op {op!r} is placed on {device!r}, expected one of the placement's devices "
            f"{', '.join(self.devices)}; add the device or correct the op's")
    # A frozen dataclass is set through `object` alone.
    object.__setattr__(self, "devices", tuple(self.devices))
    object.__setattr__(self, "fetches", tuple(self.fetches))
    object.__setattr__(self, "op_devices", types.MappingProxyType(dict(self.op_devices)))

  def __getitem__(self, op: str) -> str:
    return self.op_devices[op]

  def __iter__(self) -> Iterator[str]:
    return iter(self.op_devices)

  def __len__(self) -> int:
    return len(self.op_devices)

  def __repr__(self) -> str:
    return f"Placement({len(self)} ops on {', '.join(self.devices)})"

  @classmethod
  def from_indices(
      cls, graph: ComputationGraph, cluster: Cluster, indices: Any, **metadata: Any
  ) -> Placement:
    """Makes the placement of every op of the graph's file.

    Ops that the fetches do not need (savers, initialisers, summaries) follow the ops they are
    colocated with, or else go to the host.

    Args:
      graph: N ops.
      cluster: D devices.
      indices: [N] integers, the device of each op.
      **metadata: `method`, `seed`, `evaluations`, `step_time_us`, `lower_bound_us`,
        `peak_memory_bytes`, `baselines`.

    Returns:
      The placement, with the fingerprint of the graph and the cluster as JSON.

    Raises:
      PlacementError: `indices` has another shape or type, or an index that no device has; or two
        members of a collective group are on one device.
    """
    names = cluster.device_names
    indices = _checked_indices(graph, cluster, indices)
    node_devices.check_apart(
        nodes_with_members(graph), [names[at] for at in indices.tolist()])
    # From the N needed ops to all ops of the file.
    ops, devices = coverage.cover(graph, cluster, indices)
    return cls(
        op_devices={op: names[device] for op, device in zip(ops, devices.tolist())},
        devices=names, fingerprint=graph.fingerprint, fetches=graph.fetches,
        shapes=graph.interface_shapes, cluster=cluster.to_json(), **metadata)

  def indices(
      self, graph: ComputationGraph, cluster: Cluster, *, any_graph: bool = False) -> np.ndarray:
    """Reads the placement as device indices of a cluster; unneeded ops may be missing.

    Args:
      graph: N ops.
      cluster: the devices; only their names must be those of the placement.
      any_graph: whether the placement may have been made for another graph, as long as each op of
        this graph has a device.

    Returns:
      [N] int32, the cluster's index of each op's device.

    Raises:
      PlacementError: the placement was made for another graph, an op has no device, the placement
        names an op that the graph's file lacks, a device is not in the cluster, or two members of a
        collective group are on one device.
    """
    if not any_graph:
      belonging.check_graph(self, graph)
    # The placement's devices -> the cluster's indices, None for a device that it lacks.
    column = device_names.match(self.devices, cluster.device_names)
    # Every needed op must have a device; other ops of the file may be missing.
    missing = next((op for op in graph.op_names if op not in self.op_devices), None)
    if missing is not None:
      raise PlacementError(
          f"the placement has no device for op {missing!r}; it is for another graph, or other "
          "fetches: place this graph again")
    # More ops than needed: those of the file that the fetches do not need, if it is the same file.
    if len(self) > graph.num_ops:
      known = set(coverage.file_op_names(graph))
      unknown = next((op for op in self.op_devices if op not in known), None)
      if unknown is not None:
        raise PlacementError(
            f"the placement names op {unknown!r}, which the graph does not have; it is for "
            "another graph: place this one again")
    for op in graph.op_names:
      if column[self.op_devices[op]] is None:
        raise PlacementError(
            f"op {op!r} is placed on {self.op_devices[op]!r}, expected a device of the cluster, "
            f"{', '.join(cluster.device_names)}; use the cluster that the placement was made for")
    node_devices.check_apart(
        nodes_with_members(graph), [self.op_devices[op] for op in graph.op_names])
    return np.array([column[self.op_devices[op]] for op in graph.op_names], dtype=np.int32)

  def verify(
      self, graph: ComputationGraph, cluster: Cluster, costs: Optional[OpCosts] = None
  ) -> SimulationResult:
    """Computes the numbers of the placement again and compares them.

    Args:
      graph: the graph that the placement was made for.
      cluster: the cluster that it was made for.
      costs: the costs that it was made with; by default grappler's estimates.

    Raises:
      PlacementError: graph, fetches, shapes or devices differ, or step time or peak memory differ
        or are missing. The message names the difference. (`load` has compared the digest of all
        fields.)
    """
    return belonging.verify(self, graph, cluster, costs)

  def apply(self, target: Any, *, any_graph: bool = False) -> Any:
    """Sets the device of every op of a graph.

    Args:
      target: one of
        - a GraphDef, MetaGraphDef or CostGraphDef: returns a placed copy, its function calls
          inlined;
        - a `tf.Graph`: changes the graph in place and returns it. Apply the placement before the
          first run, because sessions do not notice later changes;
        - a ConcreteFunction, or a `tf.function` with one trace: returns a placed ConcreteFunction.
          Variables are moved to their devices for all their users; `place_function` lists them.
        A SavedModel is written by `write_placed`.
      any_graph: whether feeds and variables may have other shapes than in the graph that the
        placement was made for.

    Returns:
      The placed proto, graph or function, as the list says.

    Raises:
      PlacementError: an op of the target has no device in the placement, a feed or a variable has
        another shape, or a capture of a function cannot be moved. Nothing is changed then.
      GraphError: function calls of the target cannot be inlined.
    """
    return applying.apply(self, target, {} if any_graph else self.shapes)

  def device_function(self) -> applying.DeviceFunction:
    """Returns a function for `tf.compat.v1.device(...)`, for a graph that is being built.

    A scope does not apply to every op. The function's `report(graph)` names the missed ops, and its
    `place_missed(graph)` places them.
    """
    return applying.DeviceFunction(self)

  def save(self, path: str) -> None:
    """Writes placement.json under another name and renames it, so no reader sees a partial file.

    Raises:
      PlacementError: the file cannot be written.
    """
    outputs.write_json(path, placement_json.to_json(vars(self)))

  @classmethod
  def load(cls, path: str) -> Placement:
    """Reads placement.json.

    Raises:
      PlacementError: there is no such file, or a field of it is wrong or missing.
    """
    found = user_files.read_json(
        path, what="the placement", remedy="expected a placement.json", error_type=PlacementError)
    try:
      return cls(**placement_json.from_json(found))
    except PlacementError as error:
      raise PlacementError(f"{path}: {error}") from None


def _checked_indices(graph: ComputationGraph, cluster: Cluster, indices: Any) -> np.ndarray:
  indices = np.asarray(indices)
  if indices.shape != (graph.num_ops,) or not np.issubdtype(indices.dtype, np.integer):
    raise PlacementError(
        f"the placement is an array of {indices.dtype} of shape {indices.shape}, expected integers "
        f"of shape ({graph.num_ops},): the device of each op")
  wrong = np.flatnonzero((indices < 0) | (indices >= cluster.num_devices))
  if len(wrong):
    op = int(wrong[0])
    raise PlacementError(
        f"op {graph.op_names[op]!r} is placed on device {int(indices[op])}, expected 0 to "
        f"{cluster.num_devices - 1}: the cluster has {cluster.num_devices} devices")
  return indices
