"""Every graph on every cluster with replicas: placement alone, data parallelism, `auto` over both.

The directory of results holds `placements/` and two files of rows, a row for each (graph, cluster,
seed), appended as soon as it is done. An interrupted run goes on where it stopped.

`replicas.csv`, the results of `place(replicas="auto")`:

  graph, cluster, seed, max_seconds, max_evaluations
  replicas              the number that won, "4 mirrored" if each has variables of its own, and
                        its global batch
  one_batch             the batch of one replica alone; empty where it is not known
  step_time_us          of the best, for its global batch; fits; lower_bound_us. Where nothing fits,
                        fits is False and all figures are empty
  examples_per_second   of the best
  data_parallel_us      mirrored variables, for as many examples as the best; empty if they do not
                        fit or are not possible
  evaluations, seconds, placement
  check, check_seconds  what training the replicas beside the graph gave, and how long it took
                        (after `seconds`); empty if one replica won

`alone.csv`, placement alone: runs of their own with the same budget, after all others. They are
made once, also where rows of `replicas.csv` are deleted to be made again:

  graph, cluster, seed, max_seconds, max_evaluations
  step_time_us          empty if nothing fits
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacementError, PlacetoError
from placeto_tf.graphs import result_directory, user_files
from placeto_tf.placing import replica_search, run
from placeto_tf.placing.config import AUTO, PlacingConfig
from placeto_tf.replication import ReplicaSource

KEY = ("graph", "cluster", "seed")
_BUDGET = ("max_seconds", "max_evaluations")
FIELDS = (
    *KEY, *_BUDGET, "replicas", "global_batch", "one_batch", "step_time_us", "fits",
    "lower_bound_us", "examples_per_second", "data_parallel_us", "evaluations", "seconds",
    "placement", "check", "check_seconds")
ALONE_FIELDS = (*KEY, *_BUDGET, "step_time_us")
_ALWAYS = ("step_time_us", "lower_bound_us")
_NUMBERS = (*_ALWAYS, "global_batch", "one_batch", "examples_per_second", "data_parallel_us",
            "check_seconds")

Row = Dict[str, str]


@dataclasses.dataclass(frozen=True)
class ReplicaTableConfig:
  """The configuration: every graph on every cluster with every seed."""

  graphs: Tuple[str, ...]
  clusters: Tuple[str, ...]
  seeds: Tuple[int, ...] = (0,)
  replicas: Any = AUTO
  mirrored_variables: Optional[bool] = None
  max_seconds: Optional[float] = None
  max_evaluations: Optional[int] = None
  max_groups: int = 128
  graph_options: Dict[str, Any] = dataclasses.field(default_factory=dict)

  def placing_config(self, seed: int, replicas: Any) -> PlacingConfig:
    """The options for placing one row."""
    return PlacingConfig(
        max_seconds=self.max_seconds, max_evaluations=self.max_evaluations, seed=seed,
        max_groups=self.max_groups, replicas=replicas,
        mirrored_variables=self.mirrored_variables)


def evaluate_replicas(
    config: ReplicaTableConfig, out: str, *,
    progress: Optional[Callable[[int, int, Row], None]] = None) -> List[Row]:
  """Runs the missing rows and returns all rows.

  They have `alone_us`, too: placement alone, for as many examples as the best.

  Args:
    config: of the evaluation.
    out: the directory of results.
    progress: called with (rows done, rows in all, the row) after each, of either file.

  Raises:
    PlacetoError: a graph or cluster is wrong, or another run works in the directory.
  """
  with result_directory.alone(out):
    os.makedirs(os.path.join(out, "placements"), exist_ok=True)
    rows = _complete(config, os.path.join(out, "replicas.csv"), FIELDS, _row, progress)
    alone = _complete(config, os.path.join(out, "alone.csv"), ALONE_FIELDS, _alone, progress)
    return [{**row, "alone_us": _scaled(row, other)} for row, other in zip(rows, alone)]


def _complete(
    config: ReplicaTableConfig, path: str, fields: Tuple[str, ...],
    make: Callable[[ReplicaSource, Row, ReplicaTableConfig, str], Row],
    progress: Optional[Callable[[int, int, Row], None]]) -> List[Row]:
  """All rows of a file, of which the missing ones are made."""
  done = {tuple(row[name] for name in KEY): row for row in read_rows(path, fields)
          if all(row[name] == _text(getattr(config, name)) for name in _BUDGET)}
  wanted = [(graph, cluster, str(seed)) for graph in config.graphs for cluster in config.clusters
            for seed in config.seeds]
  for graph in config.graphs:
    source = None
    for key in [key for key in wanted if key[0] == graph and key not in done]:
      source = source or ReplicaSource(graph, config.graph_options)
      first = {**dict(zip(KEY, key)), **{name: _text(getattr(config, name)) for name in _BUDGET}}
      done[key] = {**dict.fromkeys(fields, ""), **first,
                   **make(source, first, config, os.path.dirname(path))}
      _append(path, done[key], fields)
      if progress is not None:
        progress(sum(each in done for each in wanted), len(wanted), done[key])
  return [done[key] for key in wanted]


def _text(value: Any) -> str:
  return "" if value is None else str(value)


def _scaled(row: Row, alone: Row) -> str:
  """The step time of placement alone for as many examples as the row has."""
  if not alone["step_time_us"] or not (row["global_batch"] and row["one_batch"]):
    return alone["step_time_us"]
  return str(float(alone["step_time_us"]) * float(row["global_batch"]) / float(row["one_batch"]))


def read_rows(path: str, fields: Tuple[str, ...] = FIELDS) -> List[Row]:
  """The rows of a replicas.csv, or of an alone.csv with its fields; none where there is no file.

  Raises:
    PlacetoError: the file is another one.
  """
  if not os.path.lexists(path):
    return []
  name = os.path.basename(path)
  text = user_files.read_text(path, what="the results", remedy=f"expected a {name}")
  reader = csv.DictReader(text[:text.rfind("\n") + 1].split("\n")[:-1])
  try:
    if tuple(reader.fieldnames or ()) != fields:
      raise PlacetoError(
          f"{path} has the columns {reader.fieldnames!r:.200}, expected {', '.join(fields)}")
    rows = list(reader)
  except csv.Error as error:
    raise PlacetoError(
        f"{path} is no {name} ({error}); delete the line that is damaged") from None
  for number, row in enumerate(rows, start=2):
    _check(path, number, row)
  return rows


def _check(path: str, number: int, row: Row) -> None:
  """Raises PlacetoError where the numbers of a line are none."""
  try:
    if None in row or None in row.values():
      raise ValueError("it has more or fewer fields than there are columns")
    for name in set(_NUMBERS) & set(row):
      if row[name] or (name in _ALWAYS and row.get("fits") == "True"):
        float(row[name])
  except ValueError as error:
    raise PlacetoError(
        f"line {number} of {path} was not understood ({error}); delete the line to run it again"
    ) from None


def _alone(source: ReplicaSource, key: Row, config: ReplicaTableConfig, out: str) -> Row:
  """What placement without replicas reaches."""
  del out
  try:
    found = run.place_with(
        source.graph, Cluster.parse(key["cluster"]), config.placing_config(int(key["seed"]), 1))
  except PlacementError:  # nothing fits without replicas; the column stays empty
    return {}
  return {"step_time_us": str(found.step_time_us)}


def _row(source: ReplicaSource, key: Row, config: ReplicaTableConfig, out: str) -> Row:
  """What placement with replicas reaches."""
  try:
    found = replica_search.place_replicas(
        source, Cluster.parse(key["cluster"]),
        config.placing_config(int(key["seed"]), config.replicas))
  except PlacementError:
    if config.replicas != AUTO:  # there may not be so many devices
      raise
    return {"fits": "False"}
  replication = found.replication
  assert replication is not None
  chosen = replication.chosen
  batch = chosen.global_batch if chosen is not None else None
  parallel, check = replication.data_parallel, replication.check
  stem = re.sub(r"[^\w.=-]+", "_", "__".join(key[name] for name in KEY))
  placement = os.path.join("placements", f"{stem}.json")
  found.placement.save(os.path.join(out, placement))
  return {name: _text(value) for name, value in {
      "replicas": chosen.form if chosen is not None else "1", "global_batch": batch,
      "one_batch": replication.rows["1"].global_batch,
      "step_time_us": found.step_time_us, "fits": found.fits,
      "lower_bound_us": found.lower_bound_us,
      "examples_per_second": batch / found.step_time_us * 1e6 if batch else None,
      "data_parallel_us": None if parallel is None or not parallel.fits else (
          parallel.step_time_us * (batch or 1) / (replication.data_parallel_batch or 1)),
      "evaluations": found.evaluations, "seconds": round(found.seconds, 1),
      "placement": placement, "check": check,
      "check_seconds": None if check is None else round(check.seconds, 1)}.items()}


def table(rows: List[Row]) -> str:
  """Markdown: a row for each graph and cluster, then geometric means by cluster."""
  lines = [
      "| graph | cluster | placement alone | data parallelism | `auto` | replicas | examples/s | "
      "bound | over `auto`: alone | data parallelism | better of both | check |",
      "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
  ratios: Dict[str, List[Tuple[Optional[float], Optional[float], Optional[float]]]] = {}
  for row in rows:
    best, alone, parallel = (
        float(row[name]) if row[name] else None
        for name in ("step_time_us", "alone_us", "data_parallel_us"))
    if best is None:
      lines.append(f"| {row['graph'].replace('zoo:', '')} | {row['cluster']} |"
                   + " - |" * 8 + " nothing fits | |")
      continue
    both = [each for each in (alone, parallel) if each is not None]
    ratio = tuple(
        each / best if each is not None else None
        for each in (alone, parallel, min(both) if both else None))
    ratios.setdefault(row["cluster"], []).append(ratio)  # type: ignore[arg-type]
    rate = f"{float(row['examples_per_second']):,.0f}" if row["examples_per_second"] else "-"
    lines.append("| " + " | ".join([
        row["graph"].replace("zoo:", ""), row["cluster"], _ms(alone), _ms(parallel), _ms(best),
        row["replicas"], rate, _ms(float(row["lower_bound_us"])),
        *(f"{each:.2f}" if each else "-" for each in ratio), row["check"]]) + " |")
  for cluster, found in ratios.items():
    means = [_geometric_mean([each[i] for each in found]) for i in range(3)]
    lines.append(
        f"| geometric mean | {cluster} | | | | | | | " + " | ".join(means) + " | |")
  return "\n".join(lines)


def _geometric_mean(values: List[Optional[float]]) -> str:
  known = [value for value in values if value]
  return f"{math.exp(sum(map(math.log, known)) / len(known)):.2f}" if known else "-"


def _ms(us: Optional[float]) -> str:
  return "-" if us is None else f"{us / 1e3:,.1f}"


def _append(path: str, row: Row, fields: Tuple[str, ...]) -> None:
  new = not os.path.exists(path)
  if not new:  # a run that was killed while writing leaves half a line
    with open(path, "rb+") as file:
      file.truncate(file.read().rfind(b"\n") + 1)
  with open(path, "a", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, fields, lineterminator="\n")
    if new:
      writer.writeheader()
    writer.writerow(row)


def show(done: int, total: int, row: Row) -> str:
  """One line on a row that is done."""
  return json.dumps({"done": f"{done}/{total}", **{
      name: row[name] for name in ("graph", "cluster", "replicas", "step_time_us",
                                   "data_parallel_us") if name in row}})
