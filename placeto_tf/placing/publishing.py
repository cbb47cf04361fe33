"""`place_into()`: places a graph and writes the result into a directory, for `place.py`.

The directory holds `placement.json`, the placed graph in the format of the given graph,
`report.json`, `timeline.json` (Chrome trace), `timeline.png`, `tensorboard/` and a `README.md` that
explains how to run the graph. All files appear at the end, so that a failing run does not change
earlier results; see `placeto_tf.files.outputs`.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping, Optional

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.pins import matching_ops
from placeto_tf.errors import counted, listed
from placeto_tf.files import outputs
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placements import write_placed, writing
from placeto_tf.placing import explaining, run, tables, what_now
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.observing import Observer
from placeto_tf.placing.result import PlacingResult, Replication
from placeto_tf.replication import ReplicaSource
from placeto_tf.simulation import timeline

VERSION = 1  # of report.json: fields are added within a version, see docs/files.md
# Files of a result, besides the placed graph.
_NAMES = ("README.md", "placement.json", "report.json", "timeline.json", "timeline.png",
          "tensorboard")


def place_into(
    out: Optional[str], graph: str, cluster: str, config: PlacingConfig, *,
    loading: Mapping[str, Any], observer: Observer, why: Optional[str] = None,
) -> PlacingResult:
  """Places a graph and writes the results into a directory, all of them or none.

  Args:
    out: the directory; earlier results are replaced when all new files are complete. None writes
      nothing.
    graph, cluster: specs, as in the flags of `place.py`.
    config: the options.
    loading: options of `load_graph`.
    observer: receives the progress.
    why: regex of ops to explain, which is checked before the search; names of replicas' ops are not
      known then.

  Raises:
    PlacetoError: the graph, cluster or an option is wrong, nothing fits, or `out` is in use.
  """
  devices = Cluster.parse(cluster)
  # Check the directory before the graph is loaded, which may take minutes.
  inputs = [graph, cluster, str(config.cost_model), config.policy_weights or ""]
  directory = None if out is None else outputs.ResultDirectory(out, inputs)
  with observer.stage(f"Loading {graph}"):
    loaded = run.load(graph, config, loading)
  whole = loaded.graph if isinstance(loaded, ReplicaSource) else loaded
  observer.say(step_line(whole))
  if why and whole is loaded:
    matching_ops(why, whole.op_names)
  if directory is None:
    return run.place_with(loaded, devices, config, observer=observer)
  with directory as workspace:
    # Check names and permissions before the search; other files in the directory are kept.
    workspace.claim([*_NAMES, writing.placed_name(whole)])
    writing.check_writable(whole, workspace.path)
    board = os.path.join(workspace.path, "tensorboard")
    observer.say(f"To watch the search: tensorboard --logdir={board}")
    result = run.place_with(loaded, devices, config, root_dir=board, observer=observer)
    with observer.stage("Writing"):
      _write(result, workspace.path, graph, cluster)
    workspace.publish()
  observer.say_times()
  return result


def _write(result: PlacingResult, path: str, graph: str, cluster: str) -> None:
  """Writes all files except TensorBoard's events into a directory."""
  result.placement.save(os.path.join(path, "placement.json"))
  write_placed(result.graph, result.placement, path)
  timeline.write_timeline(
      result.graph, result.costs, result.simulated, os.path.join(path, "timeline.json"))
  # Small files: the README, the report, the picture of the step.
  readme = what_now.readme(
      result.graph, result.placement.devices, graph, cluster, workers=list(result.config.workers),
      cost_model=str(result.config.cost_model))
  for name, content in (
      ("README.md", readme.encode("utf-8")),
      ("report.json", (json.dumps(report(result), indent=1) + "\n").encode("utf-8")),
      ("timeline.png", result.picture)):
    with open(os.path.join(path, name), "wb") as file:
      file.write(content)


def report(result: PlacingResult) -> Dict[str, Any]:
  """Returns the run as JSON: the options, the graph, and every row of the table."""
  config, explanation, measured = result.config, result.explanation, result.measured
  current_us = result.baselines["current"].step_time_us
  return outputs.plain({
      "version": VERSION, **vars(config), "cost_model": str(config.cost_model),
      "pins": dict(config.pins),
      "max_seconds": config.budget.max_seconds, "stop_within": config.budget.stop_within,
      "independent_runs": config.num_runs,
      "graph": _graph(result.graph), "cluster": result.cluster.to_json(),
      "step_time_us": result.step_time_us, "accuracy": result.accuracy,
      "lower_bound_us": result.lower_bound_us, "proven_optimal": result.proven,
      "explanation": {**vars(explanation), "text": str(explanation)},
      "why": explaining.why(result),
      "speedup_over_current": tables.ratio(current_us, result.step_time_us),
      "peak_memory_bytes": dict(zip(result.cluster.device_names, result.peak_memory_bytes)),
      "evaluations": result.evaluations, "seconds": result.seconds,
      "at_most_above_the_best": tables.above(result),
      "interrupted": result.interrupted, "ended": result.ended,
      "baselines": result.baselines,
      "history": [dict(zip(("evaluations", "seconds", "objective_us"), each))
                  for each in result.history],
      "measured": measured and {
          **vars(measured.step), "measurements": measured.measurements,
          "failures": measured.failures, "placers": measured.by_placer},
      "replicas": result.replication and _replication(result.replication),
      "unknown": result.costs.unknown, "small_step": result.small_step,
      "notes": result.notes,
  })


def _graph(graph: ComputationGraph) -> Dict[str, Any]:
  """Returns the graph, with the options of `load_graph`."""
  source = graph.origin
  return {
      "fingerprint": graph.fingerprint, "fetches": graph.fetches, "path": source.path,
      "ops": graph.num_ops, "options": {
          "feeds": graph.feeds, "feed_shapes": source.feed_shapes,
          "trip_count": source.trip_count, "split_loops": source.split_loops}}


def _replication(replication: Replication) -> Dict[str, Any]:
  """Returns the results of every replication strategy, and the feeds of the replicas."""
  grown, check = replication.grown, replication.check
  return {
      # Speed-ups are per example: step times of the baselines are scaled to the new batch.
      "batch_grew": grown and {"from": grown[1], "to": grown[0]},
      "placed": replication.chosen and replication.chosen.describe(),
      "rows": {strategy: {**vars(row), "examples_per_second": row.examples_per_second}
               for strategy, row in replication.rows.items()},
      "data_parallel": replication.data_parallel, "process_parallel": replication.process_parallel,
      "refused": replication.refused, "not_made": replication.not_made,
      "check": check and {**vars(check), "text": str(check)}}


def step_line(graph: ComputationGraph) -> str:
  """Returns a sentence on the step: its fetches and its feeds."""
  shapes = graph.origin.feed_shapes
  feeds = [name + (f" [{', '.join(map(str, shapes[name]))}]" if name in shapes else "")
           for name in graph.feeds]
  fed = f", fed {listed(feeds, most=4)}" if feeds else ""
  return f"A step runs {listed(graph.fetches, most=4)}{fed}: {counted(graph.num_ops, 'op')}."
