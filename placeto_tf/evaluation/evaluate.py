"""Runs every method on every graph and cluster with every seed, at equal budgets.

The directory of results holds:

  config.json         the configuration; a directory only resumes the evaluation that made it
  results.csv         a row per (graph, cluster, method, seed), appended as soon as it is done:
                      graph, cluster, method, seed, step_time_us, fits, start_us, evaluations,
                      seconds, lower_bound_us, peak_memory_bytes (of the fullest device),
                      placement (path from the directory), digest (of the row and its files, see
                      `validation`)
  placements/*.json   the placement of each row
  histories/*.json    [[evaluations, seconds, objective_us], ...] at each improvement
  references.json     graph -> cluster -> method -> step_time_us of the placements that need no
                      search, outside of any budget, to compare rows with
  tensorboard/*/      summaries of each row

An interrupted run goes on where it stopped; a rerun skips rows that are done.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation.summaries import write_summaries
from placeto_tf.files import atomic, result_directory, user_files
from placeto_tf.graphs import load_graph
from placeto_tf.methods import learned_groups, registry, running
from placeto_tf.placements import Placement
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Method, WithoutWeights
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.islands import check_islands
from placeto_tf.search.lower_bounds import lower_bound_us

FIELDS = ("graph", "cluster", "method", "seed", "step_time_us", "fits", "start_us", "evaluations",
          "seconds", "lower_bound_us", "peak_memory_bytes", "placement", "digest")
KEY = FIELDS[:4]

Row = Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  """The configuration of an evaluation.

  Attributes:
    graphs, clusters: as `load_graph` and `Cluster.parse` take them.
    methods: names of `placeto_tf.methods.registry`.
    seeds: every method runs once with each.
    max_evaluations, max_seconds: the budget of each run, baselines a policy starts from included.
    start: methods that need no search; if there are any, every search starts from the best of their
      placements, which counts as one evaluation, instead of its own starts.
    grouping, max_groups: how ops are grouped; with "learned" the hierarchical policy first learns
      groups for every search, with half of the search's budget.
    islands: how many runs of each search go on side by side; see `placeto_tf.search.islands`.
    graph_options: keyword arguments of `load_graph`.
    policy_weights: policy -> directory of its weights, or of the run of `scripts/train.py` that
      trained it, for the methods that need its weights or have weights that ship.
  """

  graphs: Tuple[str, ...]
  clusters: Tuple[str, ...]
  methods: Tuple[str, ...]
  seeds: Tuple[int, ...] = (0,)
  max_evaluations: Optional[int] = None
  max_seconds: Optional[float] = None
  grouping: str = "heavy_edge"
  max_groups: int = 128
  start: Tuple[str, ...] = ()
  islands: int = 1
  graph_options: Dict[str, Any] = dataclasses.field(default_factory=dict)
  policy_weights: Dict[str, str] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for name in ("graphs", "clusters", "methods", "seeds"):
      if not getattr(self, name):
        raise PlacetoError(f"{name} is empty; expected at least one")
    for name in self.methods:
      learned_groups.check_grouping(self.grouping, name)
      registry.check_weights(registry.find(name), self.weights_of(registry.find(name)))
    for name in self.start:
      kind = registry.find(name).kind
      if kind.takes_start or kind.learned:
        valid = (method.name for method in registry.methods()
                 if not (method.kind.takes_start or method.kind.learned))
        raise PlacetoError(
            f"start {name!r} goes on from a start itself or has to learn; expected one of "
            f"{', '.join(valid)}")
    for policy in self.policy_weights:
      if policy not in registry.weighted_policies():
        raise PlacetoError(
            f"policy {policy!r} has no weights; expected one of "
            f"{', '.join(registry.weighted_policies())}")
    if self.max_evaluations is None and self.max_seconds is None:
      raise PlacetoError("no budget was given; give max_evaluations or max_seconds")
    check_islands(self.islands)
    _ = self.budget

  @property
  def budget(self) -> Budget:
    """Of each run."""
    return Budget(max_evaluations=self.max_evaluations, max_seconds=self.max_seconds)

  def weights_of(self, method: Method) -> Optional[str]:
    """Directory of the weights that a method is run with.

    A method that can learn from scratch gets none, because the table has other methods that begin
    with the same policy's weights.
    """
    if method.weights is None or method.weights.without is WithoutWeights.LEARN:
      return None
    return self.policy_weights.get(method.weights.policy)

  def to_json(self) -> Dict[str, Any]:
    """The content of config.json."""
    return json.loads(json.dumps(dataclasses.asdict(self)))


def evaluate(
    config: EvaluationConfig, out: str, *,
    progress: Optional[Callable[[int, int, Row], None]] = None,
) -> List[Row]:
  """Runs the missing rows and returns all rows, in the order of the configuration.

  Args:
    config: of the evaluation.
    out: the directory of results.
    progress: called with (rows done, rows in all, the row) after each.

  Raises:
    PlacetoError: `out` belongs to another evaluation, or a graph or cluster is wrong.
  """
  with result_directory.alone(out):
    os.makedirs(os.path.join(out, "placements"), exist_ok=True)
    os.makedirs(os.path.join(out, "histories"), exist_ok=True)
    return _evaluate(config, out, progress)


def _evaluate(
    config: EvaluationConfig, out: str,
    progress: Optional[Callable[[int, int, Row], None]]) -> List[Row]:
  _claim(out, config)
  path = os.path.join(out, "results.csv")
  done = {_key(row): row for row in (read_results(path) if _has_header(path) else [])}
  wanted = list(_keys(config))
  for graph_name in config.graphs:
    if all(key in done for key in wanted if key[0] == graph_name):
      continue
    graph = load_graph(graph_name, **config.graph_options)
    for cluster_name in config.clusters:
      todo = [key for key in wanted if key[:2] == (graph_name, cluster_name) and key not in done]
      if not todo:
        continue
      new_problem = problem_factory(graph, Cluster.parse(cluster_name), config)
      _refer(out, graph_name, cluster_name, new_problem)
      start = _start(new_problem(), config.start)
      for key in todo:
        row = _run(new_problem(), key, config, out, start)
        write_summaries(row, out)
        _append(path, row)
        done[key] = row
        if progress is not None:
          progress(sum(key in done for key in wanted), len(wanted), row)
  return [done[key] for key in wanted]


def read_references(out: str) -> Dict[str, Dict[str, Dict[str, float]]]:
  """Graph -> cluster -> method -> step_time_us; empty where the directory has none."""
  path = os.path.join(out, "references.json")
  if not os.path.lexists(path):
    return {}
  remedy = "delete it, so that it is made again"
  content = user_files.read_json_object(path, what="the references", remedy=remedy)
  for graph, clusters in content.items():
    if not isinstance(clusters, dict) or not all(
        isinstance(methods, dict) and all(
            isinstance(us, (int, float)) and not isinstance(us, bool) for us in methods.values())
        for methods in clusters.values()):
      raise PlacetoError(f"{path!r} does not say how long {graph!r} takes; {remedy}")
  return content


def _refer(
    out: str, graph: str, cluster: str, new_problem: Callable[[], PlacementProblem]) -> None:
  """Adds a graph and cluster to references.json, unless they are in it."""
  references = read_references(out)
  if cluster in references.get(graph, {}):
    return
  found = {}
  for method in registry.references():
    problem = new_problem()
    placement = method.load()(problem, None, 0)
    found[method.name] = float(problem.simulator.simulate(placement).step_time_us)
  references.setdefault(graph, {})[cluster] = found
  atomic.write_json(os.path.join(out, "references.json"), references)


def read_results(path: str) -> List[Row]:
  """The rows of a results.csv, numbers as numbers; a last line cut short is left out.

  Raises:
    PlacetoError: the file is missing or not a results.csv.
  """
  text = user_files.read_text(path, what="the results", remedy="expected a results.csv")
  whole = text[:text.rfind("\n") + 1]
  rows = []
  reader = csv.DictReader(whole.split("\n")[:-1])
  for number, row in _numbered(path, reader):
    try:
      if None in row or None in row.values():
        raise ValueError("it has more or fewer fields than there are columns")
      rows.append(dict(
          row, seed=int(row["seed"]), step_time_us=float(row["step_time_us"]),
          fits={"True": True, "False": False}[row["fits"]],
          start_us=float(row["start_us"]) if row["start_us"] else None,
          evaluations=int(row["evaluations"]), seconds=float(row["seconds"]),
          lower_bound_us=float(row["lower_bound_us"]),
          peak_memory_bytes=float(row["peak_memory_bytes"])))
    except (TypeError, ValueError, KeyError) as error:
      raise PlacetoError(
          f"line {number} of {path} was not understood ({error}); delete the line to run it again"
      ) from None
  return rows


def _numbered(path: str, reader: csv.DictReader) -> Iterator[Tuple[int, Dict[str, Any]]]:
  """The rows with their lines; the columns are checked first."""
  try:  # Python 3.9 reads no line with a null character, not even the first
    if tuple(reader.fieldnames or ()) != FIELDS:
      raise PlacetoError(
          f"{path} has the columns {reader.fieldnames!r:.200}, expected {', '.join(FIELDS)}")
    yield from enumerate(reader, start=2)
  except csv.Error as error:
    raise PlacetoError(f"{path} is no results.csv ({error}); delete the line that is damaged"
                       ) from None


def digest_of(row: Row, out: str) -> str:
  """Binds a row's fields, its placement and its history to one another: SHA-256 in hex."""
  digest = hashlib.sha256(json.dumps(
      [_text(row[field]) for field in FIELDS if field != "digest"]).encode("utf-8"))
  name = os.path.basename(row["placement"])
  for folder in ("placements", "histories"):
    digest.update(b"\0" + user_files.read_bytes(
        os.path.join(out, folder, name), what=f"a file of {folder}",
        remedy="delete the row to run it again"))
  return digest.hexdigest()


def _text(value: Any) -> str:
  """A row in the form of results.csv."""
  return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _keys(config: EvaluationConfig) -> Iterator[Tuple[str, str, str, int]]:
  for graph in config.graphs:
    for cluster in config.clusters:
      for method in config.methods:
        for seed in config.seeds:
          yield graph, cluster, method, seed


def _key(row: Row) -> Tuple[str, str, str, int]:
  return tuple(row[field] for field in KEY)


def problem_factory(graph, cluster, config) -> Callable[[], PlacementProblem]:
  """Makes problems with separate counts that share costs, groups and the simulator."""
  problem = PlacementProblem.build(
      graph, cluster, grouping=learned_groups.first_grouping(config.grouping),
      max_groups=config.max_groups)
  problem.islands = config.islands
  return problem.renewed


def _start(problem: PlacementProblem, methods: Tuple[str, ...]) -> Optional[np.ndarray]:
  """[N] the best placement of the methods; None where there are none."""
  for name in methods:
    registry.find(name).load()(problem, None, 0)
  return problem.best_placement


def _run(
    problem: PlacementProblem, key, config: EvaluationConfig, out: str,
    start: Optional[np.ndarray]) -> Row:
  graph_name, cluster_name, name, seed = key
  method, budget = registry.find(name), config.budget
  running.prepare(problem, method, budget, seed, start=start)
  start_us = None
  if problem.best_placement is not None:
    start_us = float(problem.simulator.simulate(problem.best_placement).step_time_us)
  if config.grouping == learned_groups.LEARNED and method.kind.takes_start:
    problem = learned_groups.with_learned_groups(problem, budget, seed)
  running.run(problem, method, budget, seed, weights=config.weights_of(method))
  seconds = problem.seconds
  result = problem.simulator.simulate(problem.best_known)
  bound_us = lower_bound_us(problem)
  stem = re.sub(r"[^\w.=-]+", "_", "__".join(str(part) for part in key))
  placement = Placement.from_indices(
      problem.graph, problem.cluster, problem.best_known, method=name, seed=seed,
      evaluations=problem.evaluations, step_time_us=result.step_time_us,
      lower_bound_us=bound_us)
  file_name = os.path.join("placements", f"{stem}.json")
  placement.save(os.path.join(out, file_name))
  atomic.write(os.path.join(out, "histories", f"{stem}.json"),
               json.dumps(problem.history).encode("utf-8"), error_type=PlacetoError)
  row = {
      "graph": graph_name, "cluster": cluster_name, "method": name, "seed": seed,
      "step_time_us": float(result.step_time_us), "fits": bool(result.fits),
      "start_us": start_us, "evaluations": problem.evaluations, "seconds": round(seconds, 3),
      "lower_bound_us": float(bound_us),
      "peak_memory_bytes": float(result.peak_memory_bytes.max()), "placement": file_name}
  return {**row, "digest": digest_of(row, out)}


def _append(path: str, row: Row) -> None:
  new = not _has_header(path)
  if not new:
    _drop_cut_line(path)
  with open(path, "w" if new else "a", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
    if new:
      writer.writeheader()
    writer.writerow({name: _text(value) for name, value in row.items()})


def _has_header(path: str) -> bool:
  """Whether there are results; a run that was killed at once leaves a file without a line."""
  return os.path.lexists(path) and b"\n" in user_files.read_bytes(
      path, what="the results", remedy="expected a results.csv")


def _drop_cut_line(path: str) -> None:
  """Removes the half line that a run leaves if it is killed while writing."""
  with open(path, "rb+") as file:
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)


def _claim(out: str, config: EvaluationConfig) -> None:
  path = os.path.join(out, "config.json")
  if not os.path.lexists(path):
    atomic.write_json(path, config.to_json())
    return
  stored = user_files.read_json_object(
      path, what="the evaluation's configuration", remedy="choose another directory")
  # Graphs, clusters, methods and seeds may grow; settings on which all rows depend may not change.
  for name in ("max_evaluations", "max_seconds", "grouping", "max_groups", "start",
               "graph_options", "policy_weights", "islands"):
    default = 1 if name == "islands" else None  # older evaluations do not name it
    if (stored.get(name) or default) != (config.to_json()[name] or default):
      raise PlacetoError(
          f"{out} holds an evaluation with {name}={stored.get(name)!r}, this one has "
          f"{config.to_json()[name]!r}; choose another directory")
