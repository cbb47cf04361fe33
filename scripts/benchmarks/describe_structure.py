"""Prints how cyclic graphs of groups are, and which part of them policies see.

  scripts/with_env python scripts/benchmarks/describe_structure.py \\
      --graphs='zoo:inception_v3,family:ptb[0:4]' --max_groups=16,48,128

A row for each graph and number of groups: groups and edges between them; `cyclic`, the share of
the groups in the largest strongly connected component, and `parallel`, the share of the pairs of
groups between which no path leads, along all edges; `left out`, the share of the edges that
policies do not see; and both shares again along the edges that they do see. Ends with an error
if the edges that policies see have a cycle, or no more than --least_parallel of its pairs are
parallel.

--draw=FILE.png draws the GraphTensor of the first graph, placed on one device.
"""

from __future__ import annotations

from absl import flags

from placeto_tf.errors import PlacetoError
from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("graphs", None, "Graphs, comma separated: files, globs, zoo:NAME[:key=value], "
                  "family:NAME[a:b].", required=True)
flags.DEFINE_string("cluster", "k80:4", "The cluster that costs are of.")
flags.DEFINE_list("max_groups", ["48"], "Numbers of groups.")
flags.DEFINE_float("least_parallel", 0.1, "Share of parallel pairs that every graph has to have "
                   "more than; 0 asks for nothing.")
flags.DEFINE_string("draw", None, "A PNG file.")

_COLUMNS = ("groups", "edges", "cyclic", "parallel", "left out", "cyclic seen", "parallel seen")


def main() -> None:
  """Prints the table."""
  entry_point.import_tensorflow_quietly()
  import structure_report
  from placeto_tf.clusters import Cluster
  from placeto_tf.encoding.grouped_graph import GroupedGraph
  from placeto_tf.graphs import load_graph
  from placeto_tf.training.problems import make_problem

  cluster, poor = Cluster.parse(FLAGS.cluster), []
  print("  ".join(["graph".ljust(28), *(column.rjust(13) for column in _COLUMNS)]))
  for index, spec in enumerate(shared_flags.expand_globs(FLAGS.graphs)):
    graph = load_graph(spec)
    for max_groups in shared_flags.whole_numbers("max_groups"):
      problem = make_problem(graph, cluster, max_groups=max_groups)
      grouped = GroupedGraph.of(problem)
      if index == 0 and FLAGS.draw:
        _draw(grouped, problem)
        FLAGS.draw = None
      report = structure_report.report(grouped)
      shares = (report.cyclic_share, report.parallel_share_of_all, report.left_out_share,
                report.seen_cyclic_share, report.seen_parallel_share)
      print("  ".join([spec.ljust(28), str(report.groups).rjust(13), str(report.edges).rjust(13),
                       *(f"{share:13.3f}" for share in shares)]), flush=True)
      if report.seen_cyclic_share > 1 / report.groups or (
          report.seen_parallel_share <= FLAGS.least_parallel):
        poor.append(f"{spec} in {report.groups} groups")
  if poor:
    raise PlacetoError(
        f"what policies see has a cycle, or at most {FLAGS.least_parallel:.0%} parallel pairs, in "
        f"{', '.join(poor)}; see encoding/grouped_graph.py")


def _draw(grouped, problem) -> None:
  """Writes the picture of the problem on its first device."""
  from graph_tensor_drawing import draw
  from placeto_tf.encoding import graph_tensor

  placement = grouped.allowed.argmax(axis=1)
  simulated = problem.simulator.simulate(problem.grouping.expand(placement))
  draw(graph_tensor.encode(
      grouped, placement, step_time_us=simulated.step_time_us,
      start_us=simulated.start_us[grouped.main_op]), FLAGS.draw)


def run() -> None:
  """Entry point."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
