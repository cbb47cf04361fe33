"""`place_into()`: places, and writes the result into a directory; the program `place.py`."""

from __future__ import annotations

from typing import Any, Mapping

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.files import outputs
from placeto_tf.placements import writing
from placeto_tf.placing import reports, run
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.observing import Observer
from placeto_tf.placing.result import PlacingResult
from placeto_tf.replication import ReplicaSource


def place_into(
    out: str, graph: str, cluster: str, config: PlacingConfig, *, loading: Mapping[str, Any],
    observer: Observer,
) -> PlacingResult:
  """Places a graph and leaves the results in a directory, all of them or none.

  Args:
    out: the directory; its earlier results are replaced when all new ones are there.
    graph, cluster: specs, as the program takes them.
    config: how to place.
    loading: options of `load_graph`.
    observer: is told how it goes.

  Returns:
    The result that was written.

  Raises:
    PlacetoError: the graph, cluster or an option is wrong, nothing fits, or `out` is in use.
  """
  devices = Cluster.parse(cluster)
  # Before the graph is loaded, which may take minutes.
  outputs.check(out)
  with observer.stage(f"Loading {graph}"):
    loaded = run.load(graph, config, loading)
  whole = loaded.graph if isinstance(loaded, ReplicaSource) else loaded
  observer.say(reports.step_line(whole))
  inputs = [graph, cluster, str(config.costs), config.policy_weights or ""]
  with reports.Workspace(out, inputs) as workspace:
    # Names and rights are checked before the search.
    workspace.claim(reports.result_names(whole))
    writing.check_writable(whole, workspace.path)
    board = workspace.tensorboard_dir
    observer.say(f"To watch the search: tensorboard --logdir={board}")
    result = run.place_with(loaded, devices, config, root_dir=board, observer=observer)
    with observer.stage("Writing"):
      reports.write_result(result, workspace, graph, cluster)
    workspace.publish()
  return result
