"""Sizes and one-device step times of the zoo's graphs, as rows of a table."""

from __future__ import annotations

from typing import Dict

from placeto_tf import zoo
from placeto_tf.clusters import Cluster
from placeto_tf.graphs import load_graph
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.simple import single
from placeto_tf.simulation.memory import GIB


def describe(spec: str, cluster: str = "k80:1") -> Dict[str, str]:
  """Builds a graph and simulates it on one device.

  Args:
    spec: the spec of the graph, such as "bert:size=large" or "family:ptb[3]".
    cluster: spec of the cluster for `Cluster.parse`.

  Returns:
    A row for `tables.markdown`: sizes of the graph, and the step time on the best single device.

  Raises:
    GraphError: the spec is wrong.
    ClusterError: the cluster is wrong.
  """
  parsed = Cluster.parse(cluster)
  built = zoo.build(spec)
  graph = load_graph(built.meta_graph_def())
  # Only placements on one device are simulated, so one group is enough.
  problem = PlacementProblem.build(graph, parsed, max_groups=1)
  costs, step = problem.costs, problem.simulator.simulate(single(problem))
  peak = f"{step.peak_memory_bytes.max() / GIB:.1f} GiB" + ("" if step.fits else " (does not fit)")
  return {
      "spec": f"`{spec}`", "ops behind the train op": f"{graph.num_ops:,}",
      "ops of the graph": f"{len(built.graph.get_operations()):,}",
      "trained parameters": f"{built.num_parameters / 1e6:.1f} M",
      # Bytes held throughout the step, including the optimizer's variables and constants.
      "variables": f"{costs.persistent_bytes.sum() / GIB:.2f} GiB",
      "tensors of a step": f"{costs.output_bytes.sum() / GIB:.1f} GiB",
      "one step on one device": f"{step.step_time_us / 1e3:,.0f} ms", "memory at its peak": peak}
