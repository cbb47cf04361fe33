"""`Observer`: shows the progress of a placing run on a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from typing import Callable, Iterator, Tuple, Union

import numpy as np
from tqdm import auto as tqdm_auto

from placeto_tf.placing.explaining import ms_text
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem

_REFRESH_SECONDS = 0.2

# Called from time to time, with the problem and the name of the placer that runs.
Progress = Callable[[PlacementProblem, str], None]


@dataclasses.dataclass(frozen=True)
class Observer:
  """Receives the progress of placing, and shows it.

  Attributes:
    shown: whether progress is shown on stderr.
    listeners: functions that are called, too, whenever there is progress.
  """

  shown: bool = False
  listeners: Tuple[Progress, ...] = ()

  def say(self, text: str) -> None:
    """Shows a message of one line."""
    if self.shown:
      print(text, file=sys.stderr, flush=True)

  def add(self, text: str) -> None:
    """Shows more about the stage that is under way, in its line."""
    if self.shown:
      print(f" {text} ...", end="", flush=True, file=sys.stderr)

  @contextlib.contextmanager
  def stage(self, name: str) -> Iterator[None]:
    """Shows the name of a long stage that is no search, and at its end the time that it took."""
    started = time.monotonic()
    if self.shown:
      print(f"{name} ...", end="", flush=True, file=sys.stderr)
    ended = ""
    try:
      yield
      ended = f" {time.monotonic() - started:.1f} s"
    finally:
      if self.shown:
        print(ended, file=sys.stderr)

  @contextlib.contextmanager
  def search(self, budget: Budget) -> Iterator[Progress]:
    """Yields the function that a search calls to show progress, often thousands of times a second.

    Args:
      budget: the budget of the search.
    """
    by_seconds, shown = budget.max_seconds is not None, ("", 0.0)
    # The bar counts seconds, or evaluations if only evaluations are limited.
    with tqdm_auto.tqdm(
        total=budget.max_seconds if by_seconds else budget.max_evaluations, file=sys.stderr,
        unit="s" if by_seconds else "placements", disable=not self.shown, bar_format=(
            "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit}{postfix}")) as bar:

      def tell(problem: PlacementProblem, placer: str) -> None:
        """Tells the listeners, and updates the bar a few times a second."""
        nonlocal shown
        for listener in self.listeners:
          listener(problem, placer)
        # A change of the placer is shown at once.
        if not self.shown or (
            placer == shown[0] and time.monotonic() - shown[1] < _REFRESH_SECONDS):
          return
        shown, log = (placer, time.monotonic()), problem.search_log
        bar.n = min(log.seconds if by_seconds else log.evaluations, bar.total)
        bar.set_description_str(f"Placing ({placer})", refresh=False)
        if np.isfinite(log.best_objective_us):
          bar.set_postfix_str(
              f"best {ms_text(log.best_objective_us)}, {log.evaluations:,} evaluated",
              refresh=False)
        bar.update(0)

      yield tell


SILENT = Observer()


def observer_of(progress: Union[bool, Progress, None]) -> Observer:
  """Returns the observer for a `progress` argument.

  None shows progress if stderr is a terminal, or in a notebook.
  """
  if callable(progress):
    return Observer(listeners=(progress,))
  watched = "ipykernel" in sys.modules or sys.stderr.isatty()
  return Observer(watched if progress is None else progress)
