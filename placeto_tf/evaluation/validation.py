"""Checks results.csv again: recomputes what it can, and checks a digest of each row for the rest.

Step time, whether it fits, peak memory and lower bound are recomputed from the placement; method,
seed and number of evaluations are also in the placement's file. The digest covers all fields of the
row, its placement and its history, so that changes of other fields (seconds, the start of a search)
are found too. It shows accidental changes, not those of somebody who makes a new digest.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation.evaluate import (
  KEY,
  Row,
  digest_of,
  problem_factory,
  read_results,
)
from placeto_tf.evaluation.evaluation_config import EvaluationConfig
from placeto_tf.files import user_files
from placeto_tf.placements import Placement
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import load_with_replicas
from placeto_tf.search.lower_bounds import lower_bound_us


@dataclasses.dataclass
class _Case:
  """A graph on a cluster, and the lower bound of its step, computed when first needed."""

  problem: PlacementProblem
  bound_us: Optional[float] = None


def validate(path: str, config_graph_options: Optional[Dict[str, Any]] = None) -> List[str]:
  """Replays the placements of a results.csv; returns a sentence for every row that differs.

  Raises:
    PlacetoError: the file is no results.csv, or a graph or cluster of it cannot be loaded.
  """
  directory = os.path.dirname(os.path.abspath(path))
  options = config_graph_options or _stored_options(directory)
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


def _difference(case: _Case, row: Row, directory: str) -> str:
  """How a row differs from its files and the simulator, or ""."""
  if os.path.dirname(os.path.normpath(row["placement"])) != "placements":
    return f"its placement {row['placement']!r} is not in placements/"
  placement = Placement.load(os.path.join(directory, row["placement"]))
  problem = case.problem
  result = problem.simulator.simulate(placement.indices(problem.graph, problem.cluster))
  if case.bound_us is None:
    case.bound_us = float(lower_bound_us(problem))
  checks: Tuple[Tuple[str, Callable[[], Any]], ...] = (
      ("step_time_us", lambda: float(result.step_time_us)), ("fits", lambda: bool(result.fits)),
      ("peak_memory_bytes", lambda: float(result.peak_memory_bytes.max())),
      ("lower_bound_us", lambda: case.bound_us), ("method", lambda: placement.method),
      ("seed", lambda: placement.seed), ("evaluations", lambda: placement.evaluations))
  for field, compute in checks:
    found = compute()
    if found != row[field]:
      return (f"the step takes {found!r} us, not {row[field]!r}" if field == "step_time_us"
              else f"{field} is {found!r}, not {row[field]!r}")
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
