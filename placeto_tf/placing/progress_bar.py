"""Shows the progress of a placing run, on a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Any, Optional

import numpy as np
from tqdm import auto as tqdm_auto

from placeto_tf.problem.budget import Budget

_REFRESH_SECONDS = 0.2
_BAR_AFTER_SECONDS = 2.0
_BAR_WIDTH = 24


def say(text: str) -> None:
  """Writes a line to the stream that shows progress."""
  print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def stage(name: str):
  """Says on stderr that a stage has begun, and how long it took.

  On a terminal a bar moves if the stage takes longer than two seconds; it does not show a share.
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

  def __init__(self, budget: Budget):
    self._budget = budget
    self._by_seconds = self._budget.max_seconds is not None
    self._bar: Optional[Any] = None
    self._shown = ("", 0.0)  # stage, when

  def __enter__(self) -> ProgressBar:
    return self

  def __exit__(self, *_: Any) -> None:
    if self._bar is not None:
      self._bar.close()

  def __call__(self, problem: Any, stage_name: str) -> None:
    """Shows the progress of the search, a few times per second."""
    now = time.monotonic()
    if stage_name == self._shown[0] and now - self._shown[1] < _REFRESH_SECONDS:
      return  # called after every evaluation, thousands of times per second
    self._shown = stage_name, now
    if self._bar is None:
      total = self._budget.max_seconds if self._by_seconds else self._budget.max_evaluations
      unit = "s" if self._by_seconds else "placements"
      self._bar = tqdm_auto.tqdm(
          total=total, unit=unit, file=sys.stderr, leave=True, mininterval=0.5,
          bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit}{postfix}")
    done = problem.seconds if self._by_seconds else problem.evaluations
    self._bar.n = min(done, self._bar.total)
    self._bar.set_description_str(f"Placing ({stage_name})", refresh=False)
    if np.isfinite(problem.best_objective_us):
      self._bar.set_postfix_str(
          f"best {problem.best_objective_us / 1e3:,.1f} ms, {problem.evaluations:,} evaluated",
          refresh=False)
    self._bar.update(0)


def is_watched() -> bool:
  """Whether somebody sees what is shown: stderr is a terminal, or this is a notebook."""
  return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
  if "ipykernel" not in sys.modules:
    return False
  from IPython import get_ipython

  return type(get_ipython()).__name__ == "ZMQInteractiveShell"
