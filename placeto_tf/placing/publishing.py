"""`place_into()`: places a graph and writes the result into a directory, for `place.py`.

The directory holds `placement.json`, the placed graph in the format of the given graph,
`report.json`, `timeline.json` (Chrome trace), `timeline.png`, `tensorboard/` and a `README.md` that
explains how to run the graph. All files appear at the end, so that a failing run does not change
earlier results; see `placeto_tf.files.outputs`.
"""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.files import outputs
from placeto_tf.placements import write_placed, writing
from placeto_tf.placing import reports, run, tables, what_now
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.observing import Observer
from placeto_tf.placing.result import PlacingResult
from placeto_tf.replication import ReplicaSource
from placeto_tf.simulation import timeline

# Files of a result, besides the placed graph.
_NAMES = ("README.md", "placement.json", "report.json", "timeline.json", "timeline.png",
          "tensorboard")


def place_into(
    out: Optional[str], graph: str, cluster: str, config: PlacingConfig, *,
    loading: Mapping[str, Any], observer: Observer,
) -> PlacingResult:
  """Places a graph and writes the results into a directory, all of them or none.

  Args:
    out: the directory; earlier results are replaced when all new files are complete. None writes
      nothing.
    graph, cluster: specs, as in the flags of `place.py`.
    config: the options.
    loading: options of `load_graph`.
    observer: receives the progress.

  Returns:
    The result.

  Raises:
    PlacetoError: the graph, cluster or an option is wrong, nothing fits, or `out` is in use.
  """
  devices = Cluster.parse(cluster)
  # Check before the graph is loaded, which may take minutes.
  if out is not None:
    outputs.check(out)
  with observer.stage(f"Loading {graph}"):
    loaded = run.load(graph, config, loading)
  whole = loaded.graph if isinstance(loaded, ReplicaSource) else loaded
  observer.say(reports.step_line(whole))
  if out is None:
    return run.place_with(loaded, devices, config, observer=observer)
  inputs = [graph, cluster, str(config.costs), config.policy_weights or ""]
  with outputs.ResultDirectory(out, inputs) as workspace:
    # Check names and permissions before the search; other files in the directory are kept.
    workspace.claim([*_NAMES, writing.placed_name(whole)])
    writing.check_writable(whole, workspace.path)
    result = run.place_with(
        loaded, devices, config, root_dir=os.path.join(workspace.path, "tensorboard"),
        observer=observer)
    with observer.stage("Writing"):
      _write(result, workspace.path, graph, cluster)
    workspace.publish()
  return result


def _write(result: PlacingResult, path: str, graph: str, cluster: str) -> None:
  """Writes all files except TensorBoard's events into a directory."""
  result.placement.save(os.path.join(path, "placement.json"))
  write_placed(result.graph, result.placement, path)
  timeline.write_timeline(
      result.graph, result.costs, result.simulated, os.path.join(path, "timeline.json"))
  # Small files: the README, the report, the picture of the step.
  readme = what_now.readme(result.graph, result.placement.devices, graph, cluster)
  for name, content in (
      ("README.md", readme.encode("utf-8")),
      ("report.json", (json.dumps(reports.report(result), indent=1) + "\n").encode("utf-8")),
      ("timeline.png", tables.picture(result))):
    with open(os.path.join(path, name), "wb") as file:
      file.write(content)
