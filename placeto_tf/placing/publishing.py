"""`place_into()`: places, and writes what was found into a directory; the program `place.py`."""

from __future__ import annotations

import contextlib
import os
from typing import Any, ContextManager, Dict, Iterator, Mapping, Sequence, Union

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import result_directory
from placeto_tf.placements import writing
from placeto_tf.placing import reports, run
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.observing import Observer, Progress
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.signatures import SignatureGraphs, SignaturesResult, folder_of
from placeto_tf.placing.summaries import PlacingSummaries
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import ReplicaSource


def place_into(
    out: str, graph: str, cluster: str, config: PlacingConfig, *, loading: Mapping[str, Any],
    signatures: Union[str, Sequence[str], None] = None, observer: Observer,
) -> Union[PlacingResult, SignaturesResult]:
  """Places a graph and leaves the results in a directory, all of them or none.

  Args:
    out: the directory; its earlier results are replaced when all new ones are there.
    graph, cluster: specs, as the program takes them.
    config: how to place.
    loading: options of `load_graph`.
    signatures: keys of signatures, or "all", where several are placed.
    observer: is told how it goes.

  Raises:
    PlacetoError: the graph, cluster or an option is wrong, nothing fits, or `out` is in use.
  """
  devices = Cluster.parse(cluster)
  result_directory.check(out)
  with observer.stage(f"Loading {graph}"):
    loaded = run.load(graph, config, loading, signatures)
  whole = (loaded.whole if isinstance(loaded, SignatureGraphs) else
           loaded.graph if isinstance(loaded, ReplicaSource) else loaded)
  for part in loaded.parts.values() if isinstance(loaded, SignatureGraphs) else [whole]:
    observer.say(reports.step_line(part))
  inputs = [graph, cluster, config.costs, config.policy_weights or ""]
  with reports.Workspace(out, inputs) as workspace, contextlib.ExitStack() as files:
    workspace.claim(reports.result_names(whole, signatures=bool(signatures)))
    writing.check_writable(whole, workspace.path)
    board = workspace.tensorboard_dir
    observer.say(f"To watch the search: tensorboard --logdir={board}")
    recorded = _Recorded(observer, board, files)
    result = run.place_with(loaded, devices, config, root_dir=board, observer=recorded)
    with observer.stage("Writing"):
      reports.write_result(result, workspace)
      recorded.finish(result)
    files.close()
    workspace.publish()
  return result


class _Recorded(Observer):
  """Has another observer told, and writes TensorBoard's events of each search."""

  def __init__(self, observer: Observer, directory: str, files: contextlib.ExitStack):
    self._observer, self._directory, self._files = observer, directory, files
    self._events: Dict[str, PlacingSummaries] = {}

  def stage(self, name: str) -> ContextManager[Any]:
    return self._observer.stage(name)

  @contextlib.contextmanager
  def search(self, name: str, budget: Budget) -> Iterator[Progress]:
    events = self._events[name] = self._files.enter_context(
        PlacingSummaries(os.path.join(self._directory, name)))
    with self._observer.search(name, budget) as progress:

      def both(problem: PlacementProblem, placer: str) -> None:
        progress(problem, placer)
        events(problem, placer)

      yield both

  def finish(self, result: Union[PlacingResult, SignaturesResult]) -> None:
    """Writes what was found to the events of each search."""
    found = {folder_of(key): each for key, each in result.results.items()} if isinstance(
        result, SignaturesResult) else {"placing": result}
    for name, each in found.items():
      self._events[name].finish(each)
