"""Sizes and one-device step times of the zoo's graphs, as rows of a Markdown table."""

from __future__ import annotations

import dataclasses

from placeto_tf import zoo
from placeto_tf.clusters import Cluster
from placeto_tf.graphs import load_graph
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.simple import single

HEADER = (
    "| spec | ops behind the train op | ops of the graph | trained parameters | variables | "
    "tensors of a step | one step on one device | memory at its peak |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|")


@dataclasses.dataclass(frozen=True)
class GraphSize:
  """One training graph on one device of a cluster, and its host.

  Attributes:
    spec: as it was given.
    ops: that a training step needs.
    all_ops: of the graph, initialisers included.
    parameters: elements of the trained variables.
    variable_bytes: held throughout: variables, those of the optimizer included, and constants.
    tensor_bytes: of all outputs of the needed ops.
    step_time_us: simulated, on the best single device.
    peak_memory_bytes: of the device, or of its host where that holds more.
    fits: whether both have so much memory.
  """

  spec: str
  ops: int
  all_ops: int
  parameters: int
  variable_bytes: float
  tensor_bytes: float
  step_time_us: float
  peak_memory_bytes: float
  fits: bool

  def to_markdown(self) -> str:
    """Returns a row under `HEADER`."""
    gib = 2**30
    # GB are 2^30 bytes, as in all tables.
    peak = f"{self.peak_memory_bytes / gib:.1f} GB" + ("" if self.fits else " (does not fit)")
    cells = (
        f"`{self.spec}`", f"{self.ops:,}", f"{self.all_ops:,}", f"{self.parameters / 1e6:.1f} M",
        f"{self.variable_bytes / gib:.2f} GB", f"{self.tensor_bytes / gib:.1f} GB",
        f"{self.step_time_us / 1e3:,.0f} ms", peak)
    return f"| {' | '.join(cells)} |"


def measure_size(spec: str, cluster: str = "k80:1") -> GraphSize:
  """Builds a graph and simulates it on one device.

  Args:
    spec: of the graph, "bert:size=large" or "family:ptb[3]".
    cluster: as `Cluster.parse` takes it.

  Returns:
    Sizes of the graph, and its step on the best single device.

  Raises:
    GraphError: the spec is wrong.
    ClusterError: the cluster is.
  """
  parsed = Cluster.parse(cluster)
  built = zoo.build(spec)
  graph = load_graph(built.meta_graph_def())
  # One device is the only placement asked for, so one group is enough.
  problem = PlacementProblem.build(graph, parsed, max_groups=1)
  costs = problem.costs
  result = problem.simulator.simulate(single(problem))
  return GraphSize(
      spec=spec, ops=graph.num_ops, all_ops=len(built.graph.get_operations()),
      parameters=built.num_parameters, variable_bytes=float(costs.persistent_bytes.sum()),
      tensor_bytes=float(costs.output_bytes.sum()), step_time_us=float(result.step_time_us),
      peak_memory_bytes=float(result.peak_memory_bytes.max()), fits=bool(result.fits))
