"""Runs every method on every graph and cluster with every seed, at equal budgets.

The directory of results holds:

  config.json         the configuration; a directory only resumes the evaluation that made it
  results.csv         a row per (graph, cluster, method, seed, budget), written as soon as it is
                      done: these five, step_time_us, fits, start_us, evaluations, seconds,
                      lower_bound_us, peak_memory_bytes (of the fullest device), placement (path
                      from the directory)
  placements/*.json   the placement of each row
  histories/*.json    [[evaluations, seconds, objective_us], ...] at each improvement
  reports/*.json      the report of each row of `REPLICAS`: replication strategies, data
                      parallelism, the check. The step time of such a row is for as many examples as
                      a step of one replica has. If nothing fits there is no row, and a rerun tries
                      again

`budget` is the number of evaluations of a run; it is empty if only seconds are limited. A method
that does not search has rows for the largest budget alone.

An interrupted evaluation continues where it stopped; a rerun skips finished rows.
"""

from __future__ import annotations

import concurrent.futures
import io
import os
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import pandas as pd

from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacementError, PlacetoError
from placeto_tf.evaluation.evaluation_config import REPLICAS, EvaluationConfig
from placeto_tf.files import outputs, user_files
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placements import Placement
from placeto_tf.placing import publishing, registry, running
from placeto_tf.placing.config import AUTO
from placeto_tf.placing.replica_search import place_replicas
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.executors import Executor, Shared, executor_at, result_of
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import ReplicaSource, check_specs, load_with_replicas
from placeto_tf.search.independent_runs import Runs
from placeto_tf.search.lower_bounds import lower_bound_us

# Column -> its type in a table of results.
COLUMNS = {
    "graph": "str", "cluster": "str", "method": "str", "seed": "int64", "budget": "Int64",
    "step_time_us": "float64", "fits": "bool", "start_us": "float64", "evaluations": "int64",
    "seconds": "float64", "lower_bound_us": "float64", "peak_memory_bytes": "float64",
    "placement": "str"}

# Called with (rows done, rows in all, the row) after each.
Progress = Callable[[int, int, Dict[str, Any]], None]


class Key(NamedTuple):
  """The identity of a row: its graph, cluster, method, seed and budget."""

  graph: str
  cluster: str
  method: str
  seed: int
  budget: Optional[int]

  @property
  def stem(self) -> str:
    """Returns the name of the row's files."""
    return re.sub(r"[^\w.=-]+", "_", "__".join(map(str, self)))


def evaluate(
    config: EvaluationConfig, out: str, *, progress: Progress = lambda *_: None,
    ray: Optional[str] = None) -> pd.DataFrame:
  """Runs the rows that are missing.

  Args:
    config: of the evaluation.
    out: the directory of results.
    progress: see `Progress`.
    ray: where rows are run, see `executor_at`; None runs them in this process, one after the other.
      Both give the same rows, except for seconds.

  Returns:
    All rows, with `COLUMNS`, in the order of the configuration.

  Raises:
    PlacetoError: `out` belongs to another evaluation, or a graph or cluster is wrong.
  """
  with outputs.alone(out), executor_at(ray, config.independent_runs) as executor:
    evaluation = _Evaluation(config, out, progress)
    evaluation.run_searches(executor)
    evaluation.run_replicas()
    return evaluation.rows()


class _Evaluation:
  """The finished rows of a directory, and the rows that are still to be run."""

  def __init__(self, config: EvaluationConfig, out: str, progress: Progress):
    self._config, self._out, self._progress = config, out, progress
    self._path = os.path.join(out, "results.csv")
    self._wanted = list(_keys(config))
    # A file that cannot be read is known before anything is run or written.
    self._done: Dict[Key, Dict[str, Any]] = {}
    if os.path.lexists(self._path):
      for row in read_results(self._path).to_dict("records"):
        budget = None if pd.isna(row["budget"]) else int(row["budget"])
        self._done[Key(row["graph"], row["cluster"], row["method"], row["seed"], budget)] = row
    # Wrong specs, and missing or damaged weights, are found before the first run.
    left = self._left(replicas=False) + self._left(replicas=True)
    check_specs(key.graph for key in left)
    for cluster in {key.cluster for key in left}:
      Cluster.parse(cluster)
    for method in map(registry.find, config.methods):
      registry.read_weights(method, config.weights_of(method))
    # Settings on which all rows depend must not change.
    outputs.claim(out, config.to_json(), "evaluation", begun=("results.csv",),
                  growing=("graphs", "clusters", "methods", "seeds", "budgets"))
    for folder in ("placements", "histories"):
      os.makedirs(os.path.join(out, folder), exist_ok=True)

  def rows(self) -> pd.DataFrame:
    """Returns the finished rows, in the order of the configuration."""
    return _frame([self._done[key] for key in self._wanted if key in self._done])

  def _left(self, replicas: bool) -> List[Key]:
    return [key for key in self._wanted
            if (key.method == REPLICAS) == replicas and key not in self._done]

  def run_searches(self, executor: Executor) -> None:
    """Runs all methods but `REPLICAS`; on Ray, graphs are read while earlier runs go on."""
    config = self._config
    running_now: Dict[concurrent.futures.Future, Tuple[Key, PlacementProblem]] = {}
    graphs: Dict[str, ComputationGraph] = {}  # the latest
    # (graph, cluster), in order and without repetition; one problem each.
    cases = dict.fromkeys((key.graph, key.cluster) for key in self._left(replicas=False))
    for name, cluster in cases:
      if name not in graphs:
        graphs = {name: load_with_replicas(name, **config.graph_options)}
      problem = PlacementProblem.build(
          graphs[name], Cluster.parse(cluster), grouping=config.grouping,
          max_groups=config.max_groups)
      # A renewed problem: searching for the start does not count as evaluations of the runs.
      start = _start(problem.renewed(), config.start)
      sent = problem.portable(with_shapes=True) if executor.elsewhere else problem
      shared = executor.share((sent, start))
      threads = config.independent_runs if executor.elsewhere else executor.cores
      # Every method, seed and budget of this graph and cluster.
      for key in self._left(replicas=False):
        if key[:2] == (name, cluster):
          running_now[executor.submit(run, shared, key, config, threads)] = key, problem
          # Finished rows are written at once, so that a crash loses only a few.
          self._take(running_now, 0.0)
    while running_now:
      self._take(running_now, None)

  def _take(self, running_now: Dict[Any, Any], seconds: Optional[float]) -> None:
    """Writes the rows of runs that end within so many seconds; None waits for the next run."""
    ended, _ = concurrent.futures.wait(
        running_now, seconds, concurrent.futures.FIRST_COMPLETED)
    for future in ended:
      key, problem = running_now.pop(future)
      # The placement is simulated again here, on the problem of this process.
      indices, history, figures = result_of(future)
      result, bound_us = problem.simulator.simulate(indices), lower_bound_us(problem)
      placement = Placement.from_indices(
          problem.graph, problem.cluster, indices, method=key.method, seed=key.seed,
          evaluations=figures["evaluations"], step_time_us=result.step_time_us,
          lower_bound_us=bound_us)
      self._write(
          key, placement, history, **figures, step_time_us=float(result.step_time_us),
          fits=bool(result.fits), lower_bound_us=float(bound_us),
          peak_memory_bytes=float(result.peak_memory_bytes.max()))

  def run_replicas(self) -> None:
    """Runs the rows of `REPLICAS` in this process; if nothing fits, "auto" leaves the row out."""
    sources: Dict[str, ReplicaSource] = {}
    for key in self._left(replicas=True):
      if key.graph not in sources:
        sources = {key.graph: ReplicaSource(key.graph, self._config.graph_options)}
      try:
        found = place_replicas(
            sources[key.graph], Cluster.parse(key.cluster), self._config.placing_config(key.seed))
      except PlacementError:
        if self._config.replicas != AUTO:  # there may not be so many devices
          raise
        continue
      assert found.replication is not None
      chosen, one = found.replication.chosen, found.replication.rows["1"].global_batch
      # Scales the step to as many examples as a step of one replica has.
      share = one / chosen.global_batch if one and chosen is not None else 1.0
      os.makedirs(os.path.join(self._out, "reports"), exist_ok=True)
      outputs.write_json(
          os.path.join(self._out, "reports", f"{key.stem}.json"), publishing.report(found))
      self._write(
          key, found.placement, [(count, seconds, us * share) for count, seconds, us
                                 in found.history],
          step_time_us=found.step_time_us * share, fits=found.fits, start_us=None,
          evaluations=found.evaluations, seconds=found.seconds,
          lower_bound_us=found.lower_bound_us * share,
          peak_memory_bytes=float(found.peak_memory_bytes.max()))

  def _write(self, key: Key, placement: Placement, history: List[Any], **figures: Any) -> None:
    """Writes the files of a run, and results.csv with its row."""
    name = os.path.join("placements", f"{key.stem}.json")
    placement.save(os.path.join(self._out, name))
    outputs.write_json(os.path.join(self._out, "histories", f"{key.stem}.json"), history)
    # To the millisecond.
    figures["seconds"] = round(figures["seconds"], 3)
    self._done[key] = {**key._asdict(), **figures, "placement": name}
    # Rows of methods that are not in the configuration now are kept, too.
    text = _frame(list(self._done.values())).to_csv(index=False, lineterminator="\n")
    outputs.write(self._path, text.encode("utf-8"), error_type=PlacetoError)
    self._progress(sum(each in self._done for each in self._wanted), len(self._wanted),
                   self._done[key])


def run(
    shared: Shared, key: Key, config: EvaluationConfig, threads: int
) -> Tuple[np.ndarray, List[Any], Dict[str, Any]]:
  """Runs one method; writes nothing, because it may run on another machine, and more than once.

  Args:
    shared: (problem, start): the placement [N] from which the run starts, or None.
    key: of the run.
    config: of the evaluation.
    threads: number of threads that simulate.

  Returns:
    The best placement [N]; (evaluations, seconds, objective_us) at each improvement; and the row's
    start_us (step time of the given start; None if the method has its own), evaluations, seconds.
  """
  problem, start = shared.get()
  problem = problem.renewed()
  problem.simulator.num_threads = threads
  method = registry.find(key.method)
  budget = Budget(max_evaluations=key.budget, max_seconds=config.max_seconds)
  running.prepare(problem, method, budget, key.seed, start=start)
  start_us = None
  if problem.search_log.best_placement is not None:
    start_us = float(problem.simulator.simulate(problem.search_log.best_placement).step_time_us)
  running.run(problem, method, budget, key.seed, weights=config.weights_of(method),
              runs=Runs(config.independent_runs))
  log = problem.search_log
  return log.best_known, log.history, dict(
      start_us=start_us, evaluations=log.evaluations, seconds=log.seconds)


def read_results(path: str) -> pd.DataFrame:
  """Returns the rows of a results.csv, with `COLUMNS`.

  Raises:
    PlacetoError: the file is missing or not a results.csv.
  """
  text = user_files.read_text(path, what="the results", remedy="expected a results.csv")
  try:
    # Python reads floats exactly as they were written; names such as "None" are names.
    rows = pd.read_csv(
        io.StringIO(text), keep_default_na=False, na_values={"budget": [""]},
        dtype={name: kind for name, kind in COLUMNS.items() if kind == "str"},
        converters={name: lambda cell: float(cell or "nan")
                    for name, kind in COLUMNS.items() if kind == "float64"})
    if list(rows) != list(COLUMNS):
      raise ValueError(f"its columns are {list(rows)!r:.200}, not {', '.join(COLUMNS)}")
    return rows.astype(COLUMNS)
  except (ValueError, TypeError, OverflowError) as error:  # pandas' own are children of ValueError
    raise PlacetoError(
        f"{path} is no results.csv ({str(error):.400}); delete the line that is damaged, or choose "
        "another directory") from None


def read_history(row: Any, out: str) -> np.ndarray:
  """Reads the improvements of a row's run.

  Returns:
    [K, 3] float64: evaluations, seconds and objective in us at each improvement.

  Raises:
    PlacetoError: the file is missing or damaged.
  """
  path = os.path.join(out, "histories", os.path.basename(row["placement"]))
  history = user_files.read_json(
      path, what="the history", remedy="delete the row to run it again")
  return np.array(history, dtype=np.float64)


def _frame(rows: List[Dict[str, Any]]) -> pd.DataFrame:
  return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _keys(config: EvaluationConfig) -> Iterator[Key]:
  budgets = sorted({*config.budgets, config.max_evaluations} - {None})  # type: ignore[type-var]
  for graph in config.graphs:
    for cluster in config.clusters:
      for name in (*config.methods, *([] if config.replicas == 1 else [REPLICAS])):
        # A method that does not search has one row, of the largest budget.
        searches = name != REPLICAS and registry.find(name).kind.searches
        for budget in budgets if searches and budgets else [config.max_evaluations]:
          for seed in config.seeds:
            yield Key(graph, cluster, name, seed, budget)


def _start(problem: PlacementProblem, methods: Tuple[str, ...]) -> Optional[np.ndarray]:
  """Returns [N], the best placement of the methods; None without methods."""
  for name in methods:
    # Methods without a search need neither budget nor seed.
    registry.find(name).load()(problem, None, 0)
  return problem.search_log.best_placement
