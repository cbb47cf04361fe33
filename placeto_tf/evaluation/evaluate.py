"""Runs every method on every graph and cluster with every seed, at equal budgets.

The directory of results holds:

  config.json         what was run; a directory resumes only the evaluation it was made by
  results.csv         a row a (graph, cluster, method, seed), appended as soon as it is there:
                      graph, cluster, method, seed, step_time_us, fits, start_us, evaluations,
                      seconds, lower_bound_us, peak_memory_bytes (of the fullest device),
                      placement (path from the directory)
  placements/*.json   the placement of each row
  histories/*.json    [[evaluations, seconds, objective_us], ...] at each improvement
  references.json     graph -> cluster -> method -> step_time_us of the placements that need no
                      search, outside of any budget, to hold the rows against
  tensorboard/*/      summaries of each row

A run that stops midway goes on where it stopped; a rerun skips what is done.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from placeto_tf import atomic
from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation.summaries import write_summaries
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.methods import learned_groups, registry, running
from placeto_tf.placements import Placement
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Method, WithoutWeights
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.simulation import Simulator

FIELDS = ("graph", "cluster", "method", "seed", "step_time_us", "fits", "start_us", "evaluations",
          "seconds", "lower_bound_us", "peak_memory_bytes", "placement")
KEY = FIELDS[:4]

Row = Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  """What to run.

  Attributes:
    graphs, clusters: as `load_graph` and `Cluster.parse` take them.
    methods: names of `placeto_tf.methods.registry`.
    seeds: every method runs once with each.
    max_evaluations, max_seconds: the budget of each run, baselines a policy starts from included.
    start: methods that need no search; where there are any, every search starts from the best of
      their placements, which counts as one evaluation, in place of starts of its own.
    grouping, max_groups: how ops are grouped; "learned" has every search begin with the
      hierarchical policy learning it, with half of the search's budget.
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
    _ = self.budget

  @property
  def budget(self) -> Budget:
    """Of each run."""
    return Budget(max_evaluations=self.max_evaluations, max_seconds=self.max_seconds)

  def weights_of(self, method: Method) -> Optional[str]:
    """Directory of the weights that a method is run with.

    One that would learn from scratch without weights gets none: a table shows it beside methods
    that begin with the same policy's weights.
    """
    if method.weights is None or method.weights.without is WithoutWeights.LEARN:
      return None
    return self.policy_weights.get(method.weights.policy)

  def to_json(self) -> Dict[str, Any]:
    """As config.json holds it."""
    return json.loads(json.dumps(dataclasses.asdict(self)))


def evaluate(
    config: EvaluationConfig, out: str, *,
    progress: Optional[Callable[[int, int, Row], None]] = None,
) -> List[Row]:
  """Runs what is not done yet and returns all rows, in the order of the configuration.

  Args:
    config: what to run.
    out: the directory of results.
    progress: called with (rows done, rows in all, the row) after each.

  Raises:
    PlacetoError: `out` belongs to another evaluation, or a graph or cluster is wrong.
  """
  os.makedirs(os.path.join(out, "placements"), exist_ok=True)
  os.makedirs(os.path.join(out, "histories"), exist_ok=True)
  _claim(out, config)
  path = os.path.join(out, "results.csv")
  done = {_key(row): row for row in (read_results(path) if os.path.exists(path) else [])}
  wanted = list(_keys(config))
  for graph_name in config.graphs:
    if all(key in done for key in wanted if key[0] == graph_name):
      continue
    graph = load_graph(graph_name, **config.graph_options)
    for cluster_name in config.clusters:
      todo = [key for key in wanted if key[:2] == (graph_name, cluster_name) and key not in done]
      if not todo:
        continue
      new_problem = _problem_factory(graph, Cluster.parse(cluster_name), config)
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
  if not os.path.exists(path):
    return {}
  with open(path, encoding="utf-8") as file:
    return json.load(file)


def _refer(
    out: str, graph: str, cluster: str, new_problem: Callable[[], PlacementProblem]) -> None:
  """Adds a graph and cluster to references.json, unless it is there."""
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
  try:
    with open(path, encoding="utf-8", newline="") as file:
      text = file.read()
  except (OSError, UnicodeDecodeError) as error:
    raise PlacetoError(f"{path} cannot be read ({error}); expected a results.csv") from None
  whole = text[:text.rfind("\n") + 1]
  rows = []
  reader = csv.DictReader(whole.splitlines())
  if tuple(reader.fieldnames or ()) != FIELDS:
    raise PlacetoError(
        f"{path} has the columns {reader.fieldnames}, expected {', '.join(FIELDS)}")
  for number, row in enumerate(reader, start=2):
    try:
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


def validate(path: str, config_graph_options: Optional[Dict[str, Any]] = None) -> List[str]:
  """Replays the placements of a results.csv; returns a sentence for every row that differs.

  A row can fail in three ways: its placement is missing or does not fit the graph, its step time
  is another, or whether it fits in memory is.
  """
  directory = os.path.dirname(os.path.abspath(path))
  options = config_graph_options or _stored_options(directory)
  differences: List[str] = []
  loaded: Optional[Tuple[str, ComputationGraph]] = None  # of one graph at a time
  simulators: Dict[str, Simulator] = {}
  for row in sorted(read_results(path), key=lambda row: row["graph"]):
    if loaded is None or loaded[0] != row["graph"]:
      loaded, simulators = (row["graph"], load_graph(row["graph"], **options)), {}
    graph = loaded[1]
    if row["cluster"] not in simulators:
      cluster = Cluster.parse(row["cluster"])
      simulators[row["cluster"]] = Simulator(graph, estimate_costs(graph, cluster), cluster)
    simulator = simulators[row["cluster"]]
    name = "/".join(str(row[field]) for field in KEY)
    try:
      placement = Placement.load(os.path.join(directory, row["placement"]))
      result = simulator.simulate(placement.indices(graph, Cluster.parse(row["cluster"])))
    except PlacetoError as error:
      differences.append(f"{name}: {error}")
      continue
    if float(result.step_time_us) != row["step_time_us"]:
      differences.append(
          f"{name}: the step takes {float(result.step_time_us)!r} us, {path} says "
          f"{row['step_time_us']!r}")
    elif bool(result.fits) != row["fits"]:
      differences.append(f"{name}: fits is {bool(result.fits)}, {path} says {row['fits']}")
  return differences


def _keys(config: EvaluationConfig) -> Iterator[Tuple[str, str, str, int]]:
  for graph in config.graphs:
    for cluster in config.clusters:
      for method in config.methods:
        for seed in config.seeds:
          yield graph, cluster, method, seed


def _key(row: Row) -> Tuple[str, str, str, int]:
  return tuple(row[field] for field in KEY)


def _problem_factory(graph, cluster, config) -> Callable[[], PlacementProblem]:
  """Makes problems with counts of their own that share costs, groups and the simulator."""
  problem = PlacementProblem.build(
      graph, cluster, grouping=learned_groups.first_grouping(config.grouping),
      max_groups=config.max_groups)
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
  with open(os.path.join(out, "histories", f"{stem}.json"), "w", encoding="utf-8") as file:
    json.dump(problem.history, file)
  return {
      "graph": graph_name, "cluster": cluster_name, "method": name, "seed": seed,
      "step_time_us": float(result.step_time_us), "fits": bool(result.fits),
      "start_us": start_us, "evaluations": problem.evaluations, "seconds": round(seconds, 3),
      "lower_bound_us": float(bound_us),
      "peak_memory_bytes": float(result.peak_memory_bytes.max()), "placement": file_name}


def _append(path: str, row: Row) -> None:
  new = not os.path.exists(path)
  if not new:
    _drop_cut_line(path)
  with open(path, "a", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
    if new:
      writer.writeheader()
    writer.writerow({k: repr(v) if isinstance(v, float) else v for k, v in row.items()})


def _drop_cut_line(path: str) -> None:
  """Removes the half line that a run leaves if it is killed while writing."""
  with open(path, "rb+") as file:
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)


def _claim(out: str, config: EvaluationConfig) -> None:
  path = os.path.join(out, "config.json")
  if not os.path.exists(path):
    atomic.write_json(path, config.to_json())
    return
  with open(path, encoding="utf-8") as file:
    stored = json.load(file)
  # Graphs, clusters, methods and seeds may grow; what makes two rows comparable may not change.
  for name in ("max_evaluations", "max_seconds", "grouping", "max_groups", "start",
               "graph_options", "policy_weights"):
    if (stored.get(name) or None) != (config.to_json()[name] or None):
      raise PlacetoError(
          f"{out} holds an evaluation with {name}={stored.get(name)!r}, this one has "
          f"{config.to_json()[name]!r}; choose another directory")


def _stored_options(directory: str) -> Dict[str, Any]:
  path = os.path.join(directory, "config.json")
  if not os.path.exists(path):
    return {}
  with open(path, encoding="utf-8") as file:
    return json.load(file)["graph_options"]
