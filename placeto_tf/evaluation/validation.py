"""Checks results.csv again: recomputes what it can, and checks a digest of each row for the rest.

Step time, whether it fits, peak memory and lower bound are recomputed from the placement; method,
seed and number of evaluations are also in the placement's file. The digest covers all fields of the
row, its placement and its history, so that changes of other fields (seconds, the start of a search)
are found too. It shows accidental changes, not those of somebody who makes a new digest.
"""

from __future__ import annotations

import dataclasses
import filecmp
import os
import tempfile
from typing import Any, Callable, Dict, List, Optional, Tuple

from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import PlacementError, PlacetoError
from placeto_tf.evaluation.evaluate import (
  KEY,
  Row,
  digest_of,
  problem_factory,
  read_results,
)
from placeto_tf.evaluation.evaluation_config import REPLICAS, EvaluationConfig
from placeto_tf.graphs import load_graph, user_files
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.result_directory import changed_files
from placeto_tf.placements import Placement
from placeto_tf.placements.writing import PLACED_NAMES
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import load_with_replicas
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.simulation import timeline


@dataclasses.dataclass
class _Case:
  """A graph on a cluster, and the lower bound of its step, computed when first needed."""

  problem: PlacementProblem
  bound_us: Optional[float] = None


def validate(path: str) -> List[str]:
  """Replays the placements of a results.csv; returns a sentence for every row that differs.

  A directory that `place.py` wrote is checked by `validate_placed`.

  Raises:
    PlacetoError: the file is no results.csv, or a graph or cluster of it cannot be loaded.
  """
  if os.path.isdir(path):
    return validate_placed(path)
  directory = os.path.dirname(os.path.abspath(path))
  options = _stored_options(directory)
  differences: List[str] = []
  cases: Dict[str, _Case] = {}
  graph_name, graph, seen = None, None, set()
  for row in sorted(read_results(path), key=lambda row: row["graph"]):
    name = "/".join(str(row[field]) for field in KEY)
    if name in seen:
      differences.append(f"{name}: the row appears twice")
      continue
    seen.add(name)
    try:
      if row["method"] == REPLICAS:  # of another graph than that of its name
        difference = _changed(row, directory)
        if difference:
          differences.append(f"{name}: {difference}")
        continue
      if row["graph"] != graph_name:
        graph, cases = load_with_replicas(row["graph"], **options), {}
        graph_name = row["graph"]
      if row["cluster"] not in cases:
        config = EvaluationConfig((row["graph"],), (row["cluster"],), ("single",),
                                  max_evaluations=1)
        cases[row["cluster"]] = _Case(
            problem_factory(graph, Cluster.parse(row["cluster"]), config)())
      difference = _difference(cases[row["cluster"]], row, directory)
    except PlacetoError as error:
      difference = str(error)
    if difference:
      differences.append(f"{name}: {difference}")
  return differences


def validate_placed(directory: str) -> List[str]:
  """Computes again what `place.py` wrote; returns a sentence for everything that differs.

  Every file is compared with its digest. The placed graph is read and its
  placement simulated, and report and timeline are compared with that.

  Raises:
    PlacetoError: the directory has no results, or they cannot be read.
  """
  differences = [f"{name}: missing, or changed after it was written"
                 for name in changed_files(directory)]
  report = user_files.read_json_object(
      os.path.join(directory, "report.json"), what="the report", remedy="place the graph again")
  try:
    placement = Placement.load(os.path.join(directory, "placement.json"))
  except PlacementError as error:
    return [*differences, str(error)]
  differences += [
      f"report.json: {field} is {user_files.brief(said)}, not {user_files.brief(found)} as in "
      "placement.json"
      for field, said, found in _shared_fields(report, placement) if said != found]
  try:
    cluster = Cluster.from_json(placement.cluster or {})
    graph = _placed_graph(directory, report, placement)
    costs = estimate_costs(graph, cluster, source=report.get("costs", "grappler"))
    simulated = placement.verify(graph, cluster, costs)
    with tempfile.TemporaryDirectory() as scratch:
      again = os.path.join(scratch, "timeline.json")
      timeline.write_timeline(graph, costs, simulated, again)
      if not filecmp.cmp(again, os.path.join(directory, "timeline.json"), shallow=False):
        differences.append("timeline.json: not that of the placement")
  except PlacetoError as error:
    differences.append(f"placement.json: {error}")
  except FileNotFoundError:
    pass  # said above
  return differences


def _shared_fields(
    report: Dict[str, Any], placement: Placement) -> List[Tuple[str, Any, Any]]:
  """(field, in the report, in the placement)."""
  graph = report.get("graph")
  graph = graph if isinstance(graph, dict) else {}
  fields = ("method", "seed", "evaluations", "step_time_us", "lower_bound_us", "peak_memory_bytes",
            "cluster")
  return [
      ("fingerprint", graph.get("fingerprint"), placement.fingerprint),
      ("fetches", graph.get("fetches"), list(placement.fetches)),
      *((name, report.get(name), getattr(placement, name)) for name in fields)]


def _placed_graph(
    directory: str, report: Dict[str, Any], placement: Placement) -> ComputationGraph:
  path = next((os.path.join(directory, name) for name in PLACED_NAMES
               if os.path.lexists(os.path.join(directory, name))), None)
  if path is None:
    raise PlacetoError("the placed graph is missing")
  options = dict(report["graph"].get("options", {}))
  known = {"feeds", "feed_shapes", "trip_count", "split_loops"}
  if set(options) - known:
    raise PlacetoError(f"report.json: options of the graph are {sorted(options)}, expected "
                       f"{sorted(known)}")
  if path.endswith((".cost_graph.pb", ".cost_graph.pbtxt")):
    options = {}
  return load_graph(path, fetches=placement.fetches, **options)


def _difference(case: _Case, row: Row, directory: str) -> str:
  """How a row differs from its files and the simulator, or ""."""
  if os.path.dirname(os.path.normpath(row["placement"])) != "placements":
    return f"its placement {row['placement']!r} is not in placements/"
  placement = Placement.load(os.path.join(directory, row["placement"]))
  problem = case.problem
  result = problem.simulator.simulate(placement.indices(problem.graph, problem.cluster))
  if case.bound_us is None:
    case.bound_us = float(lower_bound_us(problem))
  checks: Tuple[Tuple[str, Callable[[], object]], ...] = (
      ("step_time_us", lambda: float(result.step_time_us)), ("fits", lambda: bool(result.fits)),
      ("peak_memory_bytes", lambda: float(result.peak_memory_bytes.max())),
      ("lower_bound_us", lambda: case.bound_us), ("method", lambda: placement.method),
      ("seed", lambda: placement.seed), ("evaluations", lambda: placement.evaluations))
  for field, compute in checks:
    found = compute()
    if found != row[field]:
      return (f"the step takes {found!r} us, not {row[field]!r}" if field == "step_time_us"
              else f"{field} is {found!r}, not {row[field]!r}")
  return _changed(row, directory)


def _changed(row: Row, directory: str) -> str:
  """Says that a row or a file of it is not as it was written, or ""."""
  if digest_of(row, directory) != row["digest"]:
    return "the row, its placement or its history was changed after it was written"
  return ""


def _stored_options(directory: str) -> Dict[str, Any]:
  path = os.path.join(directory, "config.json")
  if not os.path.lexists(path):
    return {}
  remedy = "put an undamaged copy back"
  content = user_files.read_json_object(
      path, what="the evaluation's configuration", remedy=remedy)
  options = content.get("graph_options", {})
  if not isinstance(options, dict):
    raise PlacetoError(f"graph_options of {path!r} is no object; {remedy}")
  return options
