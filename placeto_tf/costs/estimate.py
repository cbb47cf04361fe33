"""`estimate_costs`: estimates the cost of every op of a graph on the devices of a cluster.

The estimated time of an op is flops / peak + bytes / bandwidth (`work`, `roofline`), divided by the
device's efficiency, times the number of runs in a step, plus the launches between its runs. If the
device has a peak for the type that a matrix product or convolution multiplies (tensor cores), this
peak is used. A device may define a time that kernels of an op type take in addition to their work.

Dimensions: N ops, K device kinds, O outputs of all ops together.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Callable, Mapping, Optional, Tuple, Union

import numpy as np

from placeto_tf import graphs
from placeto_tf.clusters import Cluster, Device
from placeto_tf.clusters.device import PRODUCT_TYPES
from placeto_tf.costs import cache as cache_files
from placeto_tf.costs import look as looks
from placeto_tf.costs import measured_costs
from placeto_tf.costs.op_costs import OpCosts, launches_between_us
from placeto_tf.costs.roofline import peak
from placeto_tf.costs.work import OpWork, count_work
from placeto_tf.errors import CostError
from placeto_tf.files import outputs
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.on_use import GraphDef
from placeto_tf.ops import rule_of

Source = Union[str, "os.PathLike[str]", Callable[[ComputationGraph, Cluster], OpCosts]]


def estimate_costs(
    graph: ComputationGraph,
    cluster: Cluster,
    *,
    source: Source = "grappler",
    cache: Union[bool, str] = True,
    work: Optional[Callable[[], OpWork]] = None,
) -> OpCosts:
  """Estimates compute time and bytes of every op on every kind of device.

  Args:
    graph: the graph; with source "grappler", a graph from a CostGraphDef keeps its own costs.
    cluster: the devices to estimate costs for.
    source: "grappler"; the path of an OpPerformanceList, whose times are used unchanged (missing
      times are estimated); or a callable `(graph, cluster) -> OpCosts`.
    cache: whether to store grappler's counts in the user's cache folder; or another folder for
      them.
    work: returns the work of the ops; by default it is counted.

  Returns:
    Times [N, K] in us and sizes in bytes.

  Raises:
    CostError: costs are missing, negative, not a number, or of another graph.
    ClusterError: a device's properties lack its speed.
  """
  if callable(source):
    costs = source(graph, cluster)
    if not isinstance(costs, OpCosts):
      raise CostError(f"the source of costs returned {type(costs).__name__}; expected OpCosts")
    # A callable need not count trip counts; for a graph with NodeDefs they are counted here.
    known = graph.source is not None and graph.source.graph_def is not None
    if known and costs.executions is None and (graph.executions != 1).any():
      costs = dataclasses.replace(costs, executions=work_of(graph, cache).executions)
    return costs
  if not isinstance(source, (str, os.PathLike)):
    raise CostError(f"the source of costs is {source!r:.60}; expected \"grappler\", the path of a "
                    "file, or a callable")
  # Read the file first, so that a wrong path is reported at once.
  measured = None if source == "grappler" else measured_costs.read(
      os.fspath(source), graph.op_index)
  if graph.source is not None and graph.source.format == "cost_graph_def":
    costs = measured_costs.own_costs(graph, cluster)
  else:
    costs = from_work(graph, cluster, work() if work else work_of(graph, cache))
  return costs if measured is None else measured_costs.apply(graph, cluster, *measured, costs)


def work_of(graph: ComputationGraph, cache: Union[bool, str] = True) -> OpWork:
  """Counts work, with the results of a look at the step; each is taken from the cache if possible.

  The step is run only inside `look.looking`, and only if no earlier result is cached; inside
  `looking("no")`, an earlier result is not used either.

  Args:
    graph: the ops.
    cache: as for `estimate_costs`.

  Returns:
    The work of one execution of each op, [N], and its notes.

  Raises:
    CostError: the graph cannot be analysed.
  """
  graph_def = graphs.analysis_graph_def(graph)
  # With the cache off there is no key, and nothing is read or stored.
  folder = outputs.cache_folder("costs") if cache is True else os.fspath(cache) if cache else None
  key = cache_files.key_of(graph, graph_def) if folder else ""
  work = cache_files.load(folder, key)
  if work is None:
    work = count_work(graph, graph_def)
    cache_files.store(folder, key, work)
  mode = looks.mode()
  if not work.unsure or mode == "no":
    return work
  # The result of a look also depends on the values of variables.
  key += "-" + looks.identity(graph) if folder else ""
  looked = cache_files.load(folder, key)
  # Try a look that failed before only again with "yes".
  if mode != looks.EARLIER and (looked is None or looked.unsure and mode == "yes"):
    looked = _with_look(graph, graph_def, work, mode)
    cache_files.store(folder, key, looked)
  return looked or work


def _with_look(graph: ComputationGraph, graph_def: GraphDef, work: OpWork, mode: str) -> OpWork:
  """Returns the work as counted with a look at the step, or with a note on why there is none."""
  try:
    seen = looks.look(graph, graph_def, work, mode)
  except CostError as error:
    return dataclasses.replace(work, notes=(
        *work.notes, f"the step was not run to see unknown shapes, rounds and branches: {error}"))
  work = count_work(graph, graph_def, seen)
  return dataclasses.replace(work, unsure=False, notes=(
      f"{looks.RAN}, to see shapes, rounds and branches that inference does not know",
      *work.notes))


def from_work(graph: ComputationGraph, cluster: Cluster, work: OpWork) -> OpCosts:
  """Turns counted work into time on each kind of device.

  Args:
    graph: N ops.
    cluster: K device kinds.
    work: of the graph.

  Returns:
    Times [N, K] in us, with launches between runs, and sizes in bytes.

  Raises:
    ClusterError: a device's properties do not say how fast it is.
    CostError: a cost overflows.
  """
  # [N, K]: a column for each kind of device.
  compute_us = np.stack([_device_us(graph, device, work, cluster.launch_us)
                         for device in cluster.kind_devices], axis=1)
  compute_us += launches_between_us(
      compute_us, work.executions[:, None], cluster, cluster.first_of_kind)
  return OpCosts(compute_us, work.output_bytes, work.persistent_bytes, work.temporary_bytes,
                 tuple(work.notes), work.executions, work.unknown)


def _device_us(
    graph: ComputationGraph, device: Device, work: OpWork, launch_us: float) -> np.ndarray:
  """Returns [N] time of all executions of each op in a step."""
  best = peak(device)
  # [N] each, in flops/us and as a share of the peak.
  efficiency = np.full(graph.num_ops, device.efficiency)
  flops_per_us = np.full(graph.num_ops, best.flops_per_us)
  # Products of a type that the device multiplies faster, such as on tensor cores.
  for name, fields in device.product_peaks.items():
    products = work.product_types == PRODUCT_TYPES[name]
    flops_per_us[products] = fields["flops_per_us"]
    efficiency[products] = fields.get("efficiency", device.efficiency)
  # Figures of kernels, by name, override the efficiencies of the device and of products.
  names = [kernel_names(*each) for each in zip(
      graph.op_types, work.windows.tolist(), work.product_types.tolist())]
  efficiency = np.array([figure(device.op_efficiency, each, own)
                         for each, own in zip(names, efficiency.tolist())])
  # Roofline without overlap: us = flops / (flops/us) + bytes / (bytes/us).
  peak_us = work.flops / flops_per_us + work.moved_bytes / best.bytes_per_us
  launches = work.launches_on_gpu if device.type == "GPU" else work.launches
  # Beside its work a kernel takes time to fill the device and to end, [N].
  start_us = np.array([figure(device.op_start_us, each, 0.0) for each in names])
  # The kernels of an op follow one another as fast as the driver launches them.
  run_us = np.maximum(peak_us / efficiency + launches * start_us, (launches - 1) * launch_us)
  return np.where(launches, run_us * work.executions, 0.0)


@functools.cache
def kernel_names(op_type: str, window: int, product_type: int) -> Tuple[str, ...]:
  """Returns the names under which a device may have figures of a kernel.

  Args:
    op_type, window, product_type: of the op, as in `OpWork`.

  Returns:
    Names, of which the first that has a figure counts.
  """
  windows = [f" {window}x{window}", ""] if window else [""]
  types = [f" {name}" for name, number in PRODUCT_TYPES.items() if number == product_type]
  return tuple(base + each + kind for base in filter(None, (op_type, rule_of(op_type).kind))
               for kind in (*types, "") for each in windows)


def figure(figures: Mapping[str, float], names: Tuple[str, ...], default: float) -> float:
  """Returns a figure of a kernel.

  Args:
    figures: of a device, by name.
    names: of the kernel; the first that has a figure counts.
    default: the figure of other kernels.
  """
  return next((figures[name] for name in names if name in figures), default)
