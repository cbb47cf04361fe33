"""The results of a placing run: the comparison table and a directory.

The directory holds `placement.json`, the placed graph in the format that came in, `report.json`,
`timeline.json` (Chrome trace), `timeline.png`, `tensorboard/` and a `README.md` on how to run it.
All of it appears at the end, so that a failing run leaves earlier results as they were: see
`result_directory`. Of several signatures `placement.json` and the placed graph hold all,
`report.json` has a report of each, and the timelines are in `signatures/KEY/`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Dict, List, Optional, Union

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.errors import listed
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.result_directory import ResultDirectory
from placeto_tf.placements import write_placed
from placeto_tf.placements.writing import placed_name
from placeto_tf.placing import registry, what_now
from placeto_tf.placing.measured_search import MeasuredSearch
from placeto_tf.placing.replica_search import DATA_PARALLEL
from placeto_tf.placing.result import PlacingResult, Replication
from placeto_tf.placing.signatures import SignaturesResult, folder_of
from placeto_tf.problem import ledger

# Besides these there is the placed graph, in the format that came in.
_NAMES = ("README.md", "placement.json", "report.json", "timeline.json", "timeline.png",
          "tensorboard")
_NAMES_OF_SIGNATURES = ("README.md", "placement.json", "report.json", "signatures", "tensorboard")

_MOST_COLUMNS = 16  # a line of more devices is too long to read
NOTHING_TO_GAIN = 0.01  # a smaller gain than this share is not worth moving ops for


def result_names(graph: ComputationGraph, signatures: bool = False) -> List[str]:
  """What is written for a graph; files of other names in the directory stay.

  Args:
    graph: that is placed.
    signatures: whether it is of several signatures.
  """
  return [*(_NAMES_OF_SIGNATURES if signatures else _NAMES), placed_name(graph)]


class Workspace(ResultDirectory):
  """Takes the results of a placing run until all of them are there."""

  @property
  def tensorboard_dir(self) -> str:
    """The directory of summaries during the run."""
    return os.path.join(self.path, "tensorboard")


def write_result(result: Union[PlacingResult, SignaturesResult], workspace: Workspace) -> None:
  """Writes everything but TensorBoard's events into the workspace."""
  path = workspace.path
  result.placement.save(os.path.join(path, "placement.json"))
  write_placed(result.graph, result.placement, path)
  with open(os.path.join(path, "README.md"), "w", encoding="utf-8") as file:
    file.write(what_now.readme(result.graph, result.placement.devices))
  with open(os.path.join(path, "report.json"), "w", encoding="utf-8") as file:
    file.write(json.dumps(
        report_of_signatures(result) if isinstance(result, SignaturesResult) else report(result),
        indent=1) + "\n")
  if isinstance(result, PlacingResult):
    _write_timelines(result, path)
    return
  for key, found in result.results.items():
    folder = os.path.join(path, "signatures", folder_of(key))
    os.makedirs(folder)
    _write_timelines(found, folder)


def _write_timelines(result: PlacingResult, path: str) -> None:
  """The step as a Chrome trace and as a picture."""
  from placeto_tf.simulation import timeline

  shown = result.graph, result.costs, result.simulated
  timeline.write_timeline(*shown, os.path.join(path, "timeline.json"))
  timeline.timeline_png(
      result.simulated, os.path.join(path, "timeline.png"), graph=result.graph,
      costs=result.costs, title=f"One step: {_ms(result.step_time_us)}")


def report(result: PlacingResult) -> Dict[str, Any]:
  """The run as JSON: the graph, the options, and every row of the table."""
  config = result.config
  return {
      "graph": _graph(result.graph),
      "cluster": result.cluster.to_json(), "costs": config.costs,
      "method": config.method, "seed": config.seed, "grouping": config.grouping,
      "max_groups": config.max_groups, "max_seconds": config.budget.max_seconds,
      "max_evaluations": config.budget.max_evaluations, "islands": config.num_islands,
      "step_time_us": result.step_time_us,
      "lower_bound_us": result.lower_bound_us, "proven_optimal": result.proven,
      "speedup_over_current": _ratio(result.baselines["current"].step_time_us,
                                     result.step_time_us),
      "peak_memory_bytes": dict(zip(
          result.cluster.device_names, result.peak_memory_bytes.tolist())),
      "evaluations": result.evaluations, "seconds": result.seconds,
      "at_most_above_the_best": _above(result), "stop_within": config.budget.stop_within,
      "interrupted": result.interrupted, "ended": result.ended,
      "baselines": {
          name: {
              "step_time_us": row.step_time_us, "fits": row.fits, "evaluations": row.evaluations,
              "seconds": row.seconds, "gain_us": row.gain_us, "skipped": row.skipped,
              "peak_memory_bytes": None if row.step_time_us is None else dict(zip(
                  result.cluster.device_names, row.peak_memory_bytes.tolist()))}
          for name, row in result.baselines.items()},
      "history": [
          {"evaluations": e, "seconds": s, "objective_us": o} for e, s, o in result.history],
      "measured": None if result.measured is None else _measured(result.measured),
      "replicas": None if result.replication is None else _replication(result.replication),
      "notes": list(result.notes),
  }


def report_of_signatures(result: SignaturesResult) -> Dict[str, Any]:
  """The run as JSON: a report of each signature, in the order in which they were placed."""
  return {
      "graph": _graph(result.graph),
      "cluster": result.cluster.to_json(),
      "held_bytes": dict(zip(result.cluster.device_names, result.held_bytes.tolist())),
      "signatures": {key: report(found) for key, found in result.results.items()},
      "notes": list(result.notes)}


def _graph(graph: ComputationGraph) -> Dict[str, Any]:
  """What the graph is, and how `load_graph` was asked for it."""
  source = graph.source
  return {
      "fingerprint": graph.fingerprint, "fetches": list(graph.fetches),
      "path": source.path if source else None, "ops": graph.num_ops,
      "options": {} if source is None else {
          "feeds": list(graph.feeds),
          "feed_shapes": {name: list(shape) for name, shape in source.feed_shapes.items()},
          "trip_count": source.trip_count, "split_loops": source.split_loops}}


def _measured(found: MeasuredSearch) -> Dict[str, Any]:
  """The measurements; the history has the fastest step after each number of them."""
  return {
      "step_time_us": found.step.step_time_us, "low_us": found.step.low_us,
      "high_us": found.step.high_us, "steady": found.step.steady,
      "measurements": found.measurements, "failures": found.failures,
      "history": [{"measurements": m, "step_time_us": us} for m, us in found.history],
      "placers": {name: None if step.failure else step.step_time_us
                  for name, step in found.by_placer.items()}}


def step_line(graph: ComputationGraph) -> str:
  """A sentence on the step: its fetches and its feeds."""
  shapes = graph.source.feed_shapes if graph.source is not None else {}
  feeds = [name + (f" [{', '.join(map(str, shapes[name]))}]" if name in shapes else "")
           for name in graph.feeds]
  return (f"A step runs {listed(graph.fetches, most=4)}"
          + (f", fed {listed(feeds, most=4)}" if feeds else "") + f": {graph.num_ops:,} ops.")


def table(result: Union[PlacingResult, SignaturesResult], *, verbose: bool = False) -> str:
  """The comparison that the terminal shows.

  Args:
    result: of a run.
    verbose: whether every placer that took part has a row, with its gain and evaluations, and every
      one that did not run has a note. Otherwise the table has the rows to compare the answer with:
      the graph as it is, the baselines, and the placer that was asked for by name.
  """
  if isinstance(result, SignaturesResult):
    return _table_of_signatures(result, verbose)
  current_us = result.baselines["current"].step_time_us
  titles = {method.name: method.title for method in registry.methods(controls=True)}
  titles[DATA_PARALLEL] = "data parallelism"
  references = [method.name for method in registry.references()] + [DATA_PARALLEL]
  # The references come first, the others in the order in which they ran.
  order = sorted(result.baselines, key=lambda name: name not in references)
  wanted = (*references, result.config.method)
  shown = [name for name in order if verbose or name in wanted]
  rows = [["placer", "step time", "speed-up", *(("gained", "evaluations") if verbose else ()),
           "fits", *_memory_titles(result.cluster)]]
  for name in shown:
    row = result.baselines[name]
    work = [_ms(row.gain_us) if row.gain_us else "", f"{row.evaluations:,}"] if verbose else []
    rows.append([titles[name]] + (
        ["-"] * (len(rows[0]) - 1) if row.step_time_us is None else
        _cells(row.step_time_us, current_us, row.fits, row.peak_memory_bytes, work)))
  rows.append(["best"] + _cells(
      result.step_time_us, current_us, result.fits, result.peak_memory_bytes,
      ["", f"{result.evaluations:,}"] if verbose else []))
  bound = ["lower bound", _ms(result.lower_bound_us), _times(current_us, result.lower_bound_us)]
  rows.append(bound + [""] * (len(rows[0]) - len(bound)))
  lines = _align(rows)
  lines.insert(1, "-" * max(map(len, lines)))
  lines += ["", verdict(result), f"What bounds the step: {result.explanation}."]
  if result.replication is not None:
    lines[:0] = [*replica_table(result.replication), ""]
  for name in order:
    skipped = result.baselines[name].skipped
    # Placers for which there was no time left matter only to readers of the whole table.
    if skipped and (name in shown or skipped not in ledger.ORDINARY_REASONS):
      lines.append(f"Note: {titles[name]} did not run: {skipped}.")
  lines += [f"Note: {note}" for note in result.notes]
  return "\n".join(lines)


def _table_of_signatures(result: SignaturesResult, verbose: bool) -> str:
  """A row of each signature; where all is wanted, the table of each follows."""
  rows = [["signature", "ops", "as it is", "one device", "placed", "speed-up", "lower bound",
           *_memory_titles(result.cluster)]]
  for key, found in result.results.items():
    current_us, single_us = (
        found.baselines[name].step_time_us for name in ("current", "single"))
    rows.append([
        key, f"{found.graph.num_ops:,}", _ms(current_us), _ms(single_us), _ms(found.step_time_us),
        _times(current_us, found.step_time_us), _ms(found.lower_bound_us),
        *_memory_cells(found.peak_memory_bytes)])
  blank = [""] * 6
  rows.append(["variables of all", *blank, *_memory_cells(result.held_bytes)])
  lines = _align(rows)
  lines.insert(1, "-" * max(map(len, lines)))
  lines += ["", "Each signature has a step of its own; they were placed in this order, each with "
            "what it shares with those before it where it is."]
  lines += [f"Note: {note}" for note in result.notes]
  for key, found in result.results.items():
    if verbose:
      lines += ["", f"{key}:", table(found, verbose=True)]
    else:
      lines += [f"Note: {key}: {note}" for note in found.notes]
  return "\n".join(lines)


def replica_table(replication: Replication) -> List[str]:
  """Lines of a table with a row for each form of replicas, and one for data parallelism."""
  rows = [["replicas", "global batch", "step time", "examples/s", "fits", "GB at most",
           "evaluations", ""]]

  def add(title, batch, step_time_us, fits, peak_memory_bytes, evaluations, said):
    rate = f"{batch / step_time_us * 1e6:,.1f}" if batch else "-"
    rows.append([title, f"{batch:,}" if batch else "-", _ms(step_time_us), rate,
                 "yes" if fits else "no", f"{peak_memory_bytes.max() / 2**30:.2f}", evaluations,
                 said])

  chosen = replication.chosen.form if replication.chosen is not None else "1"
  for form, row in replication.rows.items():
    add(form, row.global_batch, row.step_time_us, row.fits, row.peak_memory_bytes,
        f"{row.evaluations:,}", "; ".join(filter(None, (
            "placed" if form == chosen else row.dropped, row.check))))
  found = replication.data_parallel
  if found is not None:
    add("data parallelism", replication.data_parallel_batch, found.step_time_us, found.fits,
        found.peak_memory_bytes, "1", "mirrored variables, ring all-reduce")
  for why in dict.fromkeys(replication.not_made.values()):
    forms = [form for form, other in replication.not_made.items() if other == why]
    rows.append([", ".join(forms), *["-"] * 6, f"not tried: {why}"])
  lines = _align(rows)
  lines.insert(1, "-" * max(map(len, lines)))
  return [*batch_lines(replication), *lines]


def batch_lines(replication: Replication) -> List[str]:
  """A line that says that a step now takes another batch, or none."""
  made, one = replication.chosen, replication.rows.get("1")
  before = None if one is None else one.global_batch
  if made is None or before is None or made.global_batch == before:
    return []
  return [f"The batch grew from {before:,} to {made.global_batch:,} examples a step: it is part of "
          f"the graph's shapes, and each of {made.replicas} replicas has it whole."]


def _replication(replication: Replication) -> Dict[str, Any]:
  """The figures of every form as JSON, and how to feed the replicas that were placed."""
  found = replication.data_parallel
  return {
      "placed": None if replication.chosen is None else replication.chosen.describe(),
      "rows": {
          form: {
              "replicas": row.replicas, "mirrored_variables": row.mirrored,
              "micro_batches": row.micro_batches,
              "step_time_us": row.step_time_us, "global_batch": row.global_batch,
              "examples_per_second": row.examples_per_second, "fits": row.fits,
              "peak_memory_bytes": row.peak_memory_bytes.tolist(),
              "evaluations": row.evaluations, "dropped": row.dropped, "check": row.check}
          for form, row in replication.rows.items()},
      "data_parallel": None if found is None else {
          "step_time_us": found.step_time_us, "global_batch": replication.data_parallel_batch,
          "fits": found.fits, "peak_memory_bytes": found.peak_memory_bytes.tolist(),
          "bucket_bytes": found.bucket_bytes if np.isfinite(found.bucket_bytes) else None,
          "reduced_bytes": found.reduced_bytes},
      "refused": replication.refused, "not_made": dict(replication.not_made),
      "check": None if replication.check is None else {
          **dataclasses.asdict(replication.check), "text": str(replication.check)}}


def _cells(
    step_time_us: float, current_us: Optional[float], fits: bool, peak_memory_bytes: np.ndarray,
    work: List[str]) -> List[str]:
  return [_ms(step_time_us), _times(current_us, step_time_us), *work,
          "yes" if fits else "no", *_memory_cells(peak_memory_bytes)]


def _memory_titles(cluster: Cluster) -> List[str]:
  if cluster.num_devices > _MOST_COLUMNS:
    return ["GB at most"]
  return [f"GB {device.name}" for device in cluster.devices]


def _memory_cells(held_bytes: np.ndarray) -> List[str]:
  """Of each device [D], or, of many, the most."""
  shown = held_bytes if len(held_bytes) <= _MOST_COLUMNS else [held_bytes.max()]
  return [f"{each / 2**30:.2f}" for each in shown]


def verdict(result: PlacingResult) -> str:
  """One or two sentences: the gain, or that there is nothing to gain."""
  current = result.baselines["current"]
  bound = ("no placement is faster, as was proven" if result.proven
           else f"at most {_above(result):.1%} above the best possible")
  stopped = f" The search ended after {result.seconds:.1f} s: {result.ended}." if (
      result.ended) else ""
  if not current.fits:
    return (f"The current placement does not fit in memory; the one found does and takes "
            f"{_ms(result.step_time_us)} a step ({bound}).{stopped}")
  gain = 1 - result.step_time_us / current.step_time_us if current.step_time_us else 0.0
  if gain < NOTHING_TO_GAIN:
    return (f"Nothing to gain was found: the graph already takes {_ms(current.step_time_us)} a "
            f"step, the best placement found {_ms(result.step_time_us)}, and {bound}.{stopped}")
  return (f"A step takes {_ms(result.step_time_us)} instead of {_ms(current.step_time_us)} "
          f"({_ratio(current.step_time_us, result.step_time_us):.2f}x) after "
          f"{result.evaluations:,} placements evaluated; {bound}.{stopped}")


def _above(result: PlacingResult) -> float:
  """The share by which the step is above its lower bound; that is 0 only if the step is."""
  return max(0.0, result.step_time_us / max(result.lower_bound_us, 1e-9) - 1)


def _ratio(over: Optional[float], under: Optional[float]) -> float:
  return over / under if over and under else float("nan")


def _times(over: Optional[float], under: Optional[float]) -> str:
  return f"{over / under:.2f}x" if over and under else "-"


def _ms(us: Optional[float]) -> str:
  if us is None:
    return "-"
  return f"{us / 1e3:.1f} ms" if us < 1e6 else f"{us / 1e3:,.0f} ms"


def _align(rows: List[List[str]]) -> List[str]:
  widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
  return ["  ".join(cell.ljust(w) if j == 0 else cell.rjust(w)
                    for j, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows]
