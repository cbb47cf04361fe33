"""Applies a placement to a live function, and simulates the result.

Dimensions: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import find_device
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.concrete_functions import concrete_of, read_concrete_function
from placeto_tf.placements import PlacedFunction, Placement, place_function
from placeto_tf.simulation import Simulator

if TYPE_CHECKING:
  from tensorflow.types.experimental import ConcreteFunction

_SAME = 1e-6  # relative difference of two step times that are the same


@dataclasses.dataclass(frozen=True, eq=False)
class AppliedFunction:
  """A placed function with its predicted step time; it is called like the original function.

  Attributes:
    placed: the function, and what happened to its variables.
    promised_us: step time that `place()` reported.
    step_time_us: simulated step time with the present devices of the function's ops.
    before_us: simulated step time of the function before it was placed; None if unknown.
  """

  placed: PlacedFunction
  promised_us: float
  step_time_us: float
  before_us: Optional[float] = None

  @property
  def function(self) -> ConcreteFunction:
    """Returns the placed ConcreteFunction."""
    return self.placed.function

  @property
  def kept(self) -> bool:
    """Returns whether the simulated step takes at most the time that `place()` reported."""
    return self.step_time_us <= self.promised_us * (1 + _SAME)

  def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
    return self.function(*args, **kwargs)

  def __str__(self) -> str:
    before = "" if self.before_us is None else f"; it was {self.before_us:,.0f} us before"
    return (
        f"the placed step takes {self.step_time_us:,.0f} us as simulated, {self.promised_us:,.0f} "
        f"us were predicted{before}; {self.placed}")


def apply_checked(
    placement: Placement,
    function: ConcreteFunction,
    graph: ComputationGraph,
    costs: OpCosts,
    cluster: Cluster,
    *,
    promised_us: float,
    before_us: Optional[float] = None,
) -> AppliedFunction:
  """Places a function and simulates the result.

  Args:
    placement: of the function's ops.
    function: the ConcreteFunction, or `tf.function` with one trace, that `graph` was read from.
    graph: N ops.
    costs, cluster: of the problem that `place()` solved.
    promised_us, before_us: see `AppliedFunction`.

  Returns:
    The placed function with its simulated step time in us.

  Raises:
    PlacementError: the function cannot be placed, or the graph was read from another function.
  """
  placed = place_function(placement, concrete_of(function))
  # The step is simulated with the devices that the function's ops really have.
  indices = devices_now(placed.function, graph, cluster)
  simulated = Simulator(graph, costs, cluster).simulate(indices)
  return AppliedFunction(placed, promised_us, simulated.step_time_us, before_us)


def devices_now(
    function: ConcreteFunction, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
  """Reads the device of each op of a placed function.

  Args:
    function: a ConcreteFunction; each of its ops has a device.
    graph: of the function before it was placed.
    cluster: with all its devices.

  Returns:
    [N] int32, the cluster's device of each op.

  Raises:
    PlacementError: an op of the graph is not there, or on a device that the cluster lacks.
  """
  read = read_concrete_function(function)[0]
  devices = {node.name: node.device for node in read.source.graph_def.node}
  # A device as TensorFlow writes it -> the cluster's device, looked up once for each name.
  column = {device: find_device(cluster.device_names, device) for device in set(devices.values())}
  for op in graph.op_names:
    if op not in devices:
      raise PlacementError(
          f"the placed function has no op {op!r}; hand over the function that was placed")
    if not devices[op] or column[devices[op]] is None:
      raise PlacementError(
          f"op {op!r} of the placed function is on {devices[op]!r}, expected one of "
          f"{', '.join(cluster.device_names)}; place on a cluster that has it")
  return np.array([column[devices[op]] for op in graph.op_names], dtype=np.int32)
