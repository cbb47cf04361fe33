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
  reports/*.json      the report of each row of `REPLICAS`: forms, data parallelism, the check.
                      Its step time is for as many examples as a step of one replica has; where
                      nothing fits there is no row, and a rerun tries again

An interrupted run goes on where it stopped; a rerun skips rows that are done.
"""

from __future__ import annotations

import collections
import csv
import hashlib
import itertools
import json
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacementError, PlacetoError
from placeto_tf.evaluation.evaluation_config import REPLICAS, EvaluationConfig
from placeto_tf.evaluation.runs import Found, Key, read_history, run
from placeto_tf.graphs import atomic, result_directory, user_files
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placements import Placement
from placeto_tf.placing import registry, reports
from placeto_tf.placing.config import AUTO
from placeto_tf.placing.replica_search import place_replicas
from placeto_tf.placing.result import PlacingResult
from placeto_tf.problem.executor import Calls, Executor
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.ray_executor import executor_at
from placeto_tf.replication import ReplicaSource, load_with_replicas
from placeto_tf.search.lower_bounds import lower_bound_us

FIELDS = ("graph", "cluster", "method", "seed", "step_time_us", "fits", "start_us", "evaluations",
          "seconds", "lower_bound_us", "peak_memory_bytes", "placement", "digest")
KEY = FIELDS[:4]

Row = Dict[str, Any]


def evaluate(
    config: EvaluationConfig, out: str, *,
    progress: Optional[Callable[[int, int, Row], None]] = None, ray: Optional[str] = None,
    graphs: Optional[Dict[str, ComputationGraph]] = None) -> List[Row]:
  """Runs the missing rows and returns all rows, in the order of the configuration.

  Args:
    config: of the evaluation.
    out: the directory of results.
    progress: called with (rows done, rows in all, the row) after each.
    ray: where to run them, each as a task, see `ray_executor.connected`; None is here, one after
      the other. Rows are equal but for seconds; results.csv has them as they were done.
    graphs: keeps graphs by name for later evaluations with the same options; None keeps none.

  Raises:
    PlacetoError: `out` belongs to another evaluation, or a graph or cluster is wrong.
  """
  with result_directory.alone(out):
    os.makedirs(os.path.join(out, "placements"), exist_ok=True)
    os.makedirs(os.path.join(out, "histories"), exist_ok=True)
    with executor_at(ray) as executor:
      return _evaluate(config, out, progress, executor, graphs)


def _evaluate(
    config: EvaluationConfig, out: str,
    progress: Optional[Callable[[int, int, Row], None]], executor: Executor,
    graphs: Optional[Dict[str, ComputationGraph]]) -> List[Row]:
  # What cannot be read is known before anything is run or written.
  path = os.path.join(out, "results.csv")
  done = {_key(row): row for row in (read_results(path) if _has_header(path) else [])}
  for row in done.values():
    read_history(row, out)
  for method in map(registry.find, config.methods):
    registry.read_weights(method, config.weights_of(method))
  _claim(out, config)
  wanted = list(_keys(config))
  left = collections.Counter(key[:2] for key in wanted if key not in done)
  problems: Dict[Tuple[str, str], PlacementProblem] = {}  # those of which runs are still to come

  def take(runs: Calls, seconds: Optional[float]) -> None:
    for key, found in runs.done(seconds):
      row = _write(problems[key[:2]], key, found, out)
      _append(path, row)
      done[key] = row
      left[key[:2]] -= 1
      if not left[key[:2]]:
        del problems[key[:2]]
      tell(row)

  def tell(row: Row) -> None:
    if progress is not None:
      progress(sum(key in done for key in wanted), len(wanted), row)

  threads = config.islands if executor.beside else executor.cores
  with executor.tasks(run, cpus=config.islands) as runs:
    for graph_name in config.graphs:
      if all(key in done for key in wanted if key[0] == graph_name and key[2] != REPLICAS):
        continue
      graph = (graphs or {}).get(graph_name) or load_with_replicas(
          graph_name, **config.graph_options)
      if graphs is not None:
        graphs[graph_name] = graph
      for cluster_name in config.clusters:
        todo = [key for key in wanted if key[:2] == (graph_name, cluster_name)
                and key[2] != REPLICAS and key not in done]
        if not todo:
          continue
        new_problem = problem_factory(graph, Cluster.parse(cluster_name), config)
        problems[graph_name, cluster_name] = new_problem()
        problem = new_problem()
        shared = executor.share((
            problem.portable(with_shapes=True) if executor.beside else problem,
            _start(new_problem(), config.start)))
        for key in todo:
          runs.submit(key, " ".join(map(str, key)), shared, key, config, threads)
        take(runs, 0.0)
    take(runs, None)
  for graph_name, keys in itertools.groupby(
      [key for key in wanted if key[2] == REPLICAS and key not in done], key=lambda key: key[0]):
    source = ReplicaSource(graph_name, config.graph_options)
    for key in keys:
      try:
        done[key] = _place_replicas(source, key, config, out)
      except PlacementError:
        if config.replicas != AUTO:  # there may not be so many devices
          raise
        continue
      _append(path, done[key])
      tell(done[key])
  return [done[key] for key in wanted if key in done]


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


def _text(value: object) -> str:
  """A row in the form of results.csv."""
  return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _keys(config: EvaluationConfig) -> Iterator[Key]:
  for graph in config.graphs:
    for cluster in config.clusters:
      for method in (*config.methods, *([] if config.replicas == 1 else [REPLICAS])):
        for seed in config.seeds:
          yield graph, cluster, method, seed


def _key(row: Row) -> Key:
  return tuple(row[field] for field in KEY)


def problem_factory(graph, cluster, config) -> Callable[[], PlacementProblem]:
  """Makes problems with separate counts that share costs, groups and the simulator."""
  problem = PlacementProblem.build(
      graph, cluster, grouping=config.grouping, max_groups=config.max_groups)
  return problem.renewed


def _start(problem: PlacementProblem, methods: Tuple[str, ...]) -> Optional[np.ndarray]:
  """[N] the best placement of the methods; None where there are none."""
  for name in methods:
    registry.find(name).load()(problem, None, 0)
  return problem.account.best_placement


def _write(problem: PlacementProblem, key: Key, found: Found, out: str) -> Row:
  """Writes the placement and the history of a run; its row."""
  result = problem.simulator.simulate(found.placement)
  bound_us = lower_bound_us(problem)
  placement = Placement.from_indices(
      problem.graph, problem.cluster, found.placement, method=key[2], seed=key[3],
      evaluations=found.evaluations, step_time_us=result.step_time_us,
      lower_bound_us=bound_us)
  return _row(key, found, placement, found.history, out, step_time_us=float(result.step_time_us),
              fits=bool(result.fits), start_us=found.start_us, lower_bound_us=float(bound_us),
              peak_memory_bytes=float(result.peak_memory_bytes.max()))


def _place_replicas(
    source: ReplicaSource, key: Key, config: EvaluationConfig, out: str) -> Row:
  """Places with replicas and writes placement, history and report; the row.

  Raises:
    PlacementError: nothing fits, or there are more replicas than devices.
  """
  found = place_replicas(source, Cluster.parse(key[1]), config.placing_config(key[3]))
  assert found.replication is not None
  chosen, one = found.replication.chosen, found.replication.rows["1"].global_batch
  share = one / chosen.global_batch if one and chosen is not None else 1.0
  os.makedirs(os.path.join(out, "reports"), exist_ok=True)
  atomic.write_json(os.path.join(out, "reports", f"{stem_of(key)}.json"), reports.report(found))
  history = [(count, seconds, us * share) for count, seconds, us in found.history]
  return _row(key, found, found.placement, history, out, step_time_us=found.step_time_us * share,
              fits=found.fits, start_us=None, lower_bound_us=found.lower_bound_us * share,
              peak_memory_bytes=float(found.peak_memory_bytes.max()))


def stem_of(key: Key) -> str:
  """The name of a row's files."""
  return re.sub(r"[^\w.=-]+", "_", "__".join(map(str, key)))


def _row(
    key: Key, found: Union[Found, PlacingResult], placement: Placement,
    history: List[Tuple[int, float, float]], out: str, **figures: Any) -> Row:
  """Writes the placement and the history of a run; its row."""
  file_name = os.path.join("placements", f"{stem_of(key)}.json")
  placement.save(os.path.join(out, file_name))
  atomic.write(os.path.join(out, "histories", f"{stem_of(key)}.json"),
               json.dumps(history).encode("utf-8"), error_type=PlacetoError)
  row = {**dict(zip(KEY, key)), **figures, "evaluations": found.evaluations,
         "seconds": round(found.seconds, 3), "placement": file_name}
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
  # Older evaluations do not name all of them.
  defaults = {"islands": 1, "replicas": 1, "batch_norm": "replica"}
  for name in ("max_evaluations", "max_seconds", "grouping", "max_groups", "start",
               "graph_options", "policy_weights", "islands", "replicas", "mirrored_variables",
               "batch_norm"):
    default = defaults.get(name)
    if (stored.get(name) or default) != (config.to_json()[name] or default):
      raise PlacetoError(
          f"{out} holds an evaluation with {name}={stored.get(name)!r}, this one has "
          f"{config.to_json()[name]!r}; choose another directory")
