"""What a placing run shows and leaves behind: progress, the comparison table, a directory of
results.

The directory holds `placement.json`, the placed graph in the format that came in, `report.json`,
`timeline.json` (Chrome trace), `timeline.png` and `tensorboard/`. All of it is written beside the
directory first and moved in at the end, so that a failing run leaves earlier results as they were.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from typing import Any, Dict, List, Optional

import numpy as np
import tqdm

from placeto_tf.errors import PlacetoError
from placeto_tf.methods import registry
from placeto_tf.methods.measured_search import MeasuredSearch
from placeto_tf.placements import write_placed
from placeto_tf.placing import PlacingConfig
from placeto_tf.placing_result import PlacingResult

# Everything a run may have left in a directory; a later run removes what it does not write anew.
RESULT_NAMES = (
    "placement.json", "report.json", "timeline.json", "timeline.png", "tensorboard", "graph.pb",
    "graph.pbtxt", "graph.meta", "graph.meta.pbtxt", "graph.cost_graph.pb",
    "graph.cost_graph.pbtxt", "saved_model")

NOTHING_TO_GAIN = 0.01  # a faster step by less than this share is not worth moving ops for
_REFRESH_SECONDS = 0.2
_BAR_AFTER_SECONDS = 2.0
_BAR_WIDTH = 24


@contextlib.contextmanager
def stage(name: str):
  """Says on stderr that a stage has begun, and how long it took.

  On a terminal a bar moves while the stage takes longer than two seconds; how far it has come is
  not known.
  """
  started = time.monotonic()
  done = threading.Event()
  print(f"{name} ...", end="", flush=True, file=sys.stderr)
  mover = threading.Thread(target=_move_bar, args=(name, started, done), daemon=True)
  if sys.stderr.isatty():
    mover.start()
  try:
    yield
  except BaseException:
    _stop(mover, done, name)
    print(file=sys.stderr)
    raise
  _stop(mover, done, name)
  print(f" {time.monotonic() - started:.1f} s", file=sys.stderr)


def _move_bar(name: str, started: float, done: threading.Event) -> None:
  """Shows that work goes on until it is done."""
  wait = _BAR_AFTER_SECONDS
  step = 0
  while not done.wait(wait):
    wait = _REFRESH_SECONDS
    step = (step + 1) % (2 * _BAR_WIDTH)
    place = min(step, 2 * _BAR_WIDTH - step)
    bar = (" " * place + "###" + " " * _BAR_WIDTH)[:_BAR_WIDTH + 3]
    print(f"\r{name} ... |{bar}| {time.monotonic() - started:.0f} s", end="", flush=True,
          file=sys.stderr)


def _stop(mover: threading.Thread, done: threading.Event, name: str) -> None:
  """Ends the bar and leaves the line as it began."""
  done.set()
  if mover.is_alive():
    mover.join()
    print(f"\r\033[K{name} ...", end="", flush=True, file=sys.stderr)


class ProgressBar:
  """The `progress` callback of `place()` as a bar over the budget."""

  def __init__(self, config: PlacingConfig):
    self._budget = config.budget
    self._by_seconds = self._budget.max_seconds is not None
    self._bar: Optional[tqdm.tqdm] = None
    self._shown = ("", 0.0)  # stage, when

  def __enter__(self) -> ProgressBar:
    return self

  def __exit__(self, *_: Any) -> None:
    if self._bar is not None:
      self._bar.close()

  def __call__(self, problem: Any, stage_name: str) -> None:
    """Shows how far the search is, a few times a second."""
    now = time.monotonic()
    if stage_name == self._shown[0] and now - self._shown[1] < _REFRESH_SECONDS:
      return  # called after every evaluation, of which there are thousands a second
    self._shown = stage_name, now
    if self._bar is None:
      total = self._budget.max_seconds if self._by_seconds else self._budget.max_evaluations
      unit = "s" if self._by_seconds else "placements"
      self._bar = tqdm.tqdm(
          total=total, unit=unit, file=sys.stderr, leave=True, mininterval=0.5,
          bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit}{postfix}")
    done = problem.seconds if self._by_seconds else problem.evaluations
    self._bar.n = min(done, self._bar.total)
    self._bar.set_description_str(f"Placing ({stage_name})", refresh=False)
    if np.isfinite(problem.best_objective_us):
      self._bar.set_postfix_str(
          f"best {_ms(problem.best_objective_us)}, {problem.evaluations} evaluated", refresh=False)
    self._bar.update(0)


def check_out_dir(out: str) -> None:
  """Raises PlacetoError where `out` cannot become the directory of results."""
  if os.path.exists(out) and not os.path.isdir(out):
    raise PlacetoError(f"--out={out} is a file; expected a directory, new or existing")
  parent = os.path.dirname(os.path.abspath(out))
  while not os.path.exists(parent):
    parent = os.path.dirname(parent)
  if not os.access(out if os.path.isdir(out) else parent, os.W_OK):
    raise PlacetoError(f"--out={out} cannot be written; choose a directory that you may write to")


class Workspace:
  """A directory beside `out` that takes the results until all of them are there."""

  def __init__(self, out: str):
    self.out = os.path.abspath(out)
    self.path = f"{self.out}.partial-{os.getpid()}"

  @property
  def tensorboard_dir(self) -> str:
    """Where summaries go while the run lasts."""
    return os.path.join(self.path, "tensorboard")

  def __enter__(self) -> Workspace:
    os.makedirs(self.path)
    return self

  def __exit__(self, *_: Any) -> None:
    shutil.rmtree(self.path, ignore_errors=True)

  def publish(self) -> None:
    """Moves the results into `out`; files there that are not results stay."""
    if not os.path.isdir(self.out):
      os.makedirs(os.path.dirname(self.out), exist_ok=True)
      os.rename(self.path, self.out)
      return
    # Earlier results step aside first and are dropped last: a crash between loses neither.
    aside = self.path + ".old"
    os.makedirs(aside)
    for name in RESULT_NAMES:
      if os.path.lexists(os.path.join(self.out, name)):
        os.rename(os.path.join(self.out, name), os.path.join(aside, name))
    for name in os.listdir(self.path):
      os.rename(os.path.join(self.path, name), os.path.join(self.out, name))
    shutil.rmtree(aside)


def write_result(result: PlacingResult, workspace: Workspace) -> None:
  """Writes everything but the policy's own summaries into the workspace."""
  from placeto_tf.simulation import timeline

  path = workspace.path
  result.placement.save(os.path.join(path, "placement.json"))
  write_placed(result.graph, result.placement, path)
  with open(os.path.join(path, "report.json"), "w", encoding="utf-8") as file:
    json.dump(report(result), file, indent=1)
    file.write("\n")
  shown = result.graph, result.costs, result.simulated
  timeline.write_timeline(*shown, os.path.join(path, "timeline.json"))
  timeline.timeline_png(
      result.simulated, os.path.join(path, "timeline.png"), graph=result.graph,
      costs=result.costs, title=f"One step: {_ms(result.step_time_us)}")
  write_summaries(result, workspace.tensorboard_dir)


def write_summaries(result: PlacingResult, directory: str) -> None:
  """TensorBoard: the placed graph, coloured by device, and best step time by evaluations."""
  from tensorboard.compat.proto import event_pb2, summary_pb2
  from tensorboard.summary.writer.event_file_writer import EventFileWriter

  writer = EventFileWriter(os.path.join(directory, "placing"))
  try:
    now = time.time() - result.seconds
    for evaluations, seconds, objective_us in result.history:
      value = summary_pb2.Summary.Value(
          tag="Placing/best_step_time_ms", simple_value=objective_us / 1e3)
      writer.add_event(event_pb2.Event(
          wall_time=now + seconds, step=evaluations,
          summary=summary_pb2.Summary(value=[value])))
    placed = _placed_graph_def(result)
    if placed is not None:
      writer.add_event(event_pb2.Event(
          wall_time=time.time(), graph_def=placed.SerializeToString()))
  finally:
    writer.close()


def _placed_graph_def(result: PlacingResult) -> Any:
  source = result.graph.source
  if source is None or source.graph_def is None:
    return None
  return result.placement.apply(source.graph_def)


def report(result: PlacingResult) -> Dict[str, Any]:
  """The run as JSON: what was placed, how, and every row of the table."""
  config = result.config
  return {
      "graph": {
          "fingerprint": result.graph.fingerprint, "fetches": list(result.graph.fetches),
          "path": result.graph.source.path if result.graph.source else None,
          "ops": result.graph.num_ops},
      "cluster": result.cluster.to_json(),
      "method": config.method, "seed": config.seed, "grouping": config.grouping,
      "max_groups": config.max_groups, "max_seconds": config.budget.max_seconds,
      "max_evaluations": config.budget.max_evaluations,
      "step_time_us": result.step_time_us,
      "lower_bound_us": result.lower_bound_us, "proven_optimal": result.proven,
      "speedup_over_current": _ratio(result.baselines["current"].step_time_us,
                                     result.step_time_us),
      "peak_memory_bytes": dict(zip(
          result.cluster.device_names, result.peak_memory_bytes.tolist())),
      "evaluations": result.evaluations, "seconds": result.seconds,
      "interrupted": result.interrupted,
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
      "notes": list(result.notes),
  }


def _measured(found: MeasuredSearch) -> Dict[str, Any]:
  """What real sessions showed; the history says after how many of them what was the fastest."""
  return {
      "step_time_us": found.step.step_time_us, "low_us": found.step.low_us,
      "high_us": found.step.high_us, "steady": found.step.steady,
      "measurements": found.measurements, "failures": found.failures,
      "history": [{"measurements": m, "step_time_us": us} for m, us in found.history],
      "placers": {name: None if step.failure else step.step_time_us
                  for name, step in found.by_placer.items()}}


def table(result: PlacingResult) -> str:
  """The comparison the terminal shows."""
  current_us = result.baselines["current"].step_time_us
  devices = [device.name for device in result.cluster.devices]
  rows = [["placer", "step time", "speed-up", "gained", "evaluations", "fits"]
          + [f"GB {name}" for name in devices]]
  titles = {method.name: method.title for method in registry.methods()}
  references = [method.name for method in registry.references()]
  # The references come first, the others in the order in which they ran.
  order = sorted(result.baselines, key=lambda name: name not in references)
  for name in order:
    row = result.baselines[name]
    rows.append([titles[name]] + (
        _cells(row.step_time_us, current_us, row.fits, row.peak_memory_bytes,
               _ms(row.gain_us) if row.gain_us else "", f"{row.evaluations:,}")
        if row.step_time_us is not None else ["-"] * (5 + len(devices))))
  rows.append(["best"] + _cells(
      result.step_time_us, current_us, result.fits, result.peak_memory_bytes, "",
      f"{result.evaluations:,}"))
  rows.append(["lower bound", _ms(result.lower_bound_us),
               _times(current_us, result.lower_bound_us)] + [""] * (3 + len(devices)))
  lines = _align(rows)
  lines.insert(1, "-" * max(map(len, lines)))
  lines += ["", verdict(result)]
  lines += [f"Note: {titles[name]} did not run: {result.baselines[name].skipped}."
            for name in order if result.baselines[name].skipped]
  lines += [f"Note: {note}" for note in result.notes]
  return "\n".join(lines)


def _cells(
    step_time_us: float, current_us: Optional[float], fits: bool, peak_memory_bytes: np.ndarray,
    gained: str, evaluations: str) -> List[str]:
  return [_ms(step_time_us), _times(current_us, step_time_us), gained, evaluations,
          "yes" if fits else "no", *(f"{b / 2**30:.2f}" for b in peak_memory_bytes)]


def verdict(result: PlacingResult) -> str:
  """One or two sentences: what was gained, or that there is nothing to gain."""
  current = result.baselines["current"]
  bound = ("no placement is faster, as was proven" if result.proven
           else f"no placement can be faster than {_ms(result.lower_bound_us)}")
  stopped = " The search was stopped early." if result.interrupted else ""
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
