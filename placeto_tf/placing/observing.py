"""`Observer`: shows the progress of a placing run, and where its time went."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import time
from typing import Callable, Dict, Iterator, Tuple, Union

import numpy as np
from tqdm import auto as tqdm_auto

from placeto_tf.placing.explaining import ms_text
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem

_BAR_SECONDS = 0.2  # between two states of a bar
_LINE_SECONDS = 10.0  # between two lines where there is no bar

# Called from time to time, with the problem and the name of the placer that runs.
Progress = Callable[[PlacementProblem, str], None]


@dataclasses.dataclass(frozen=True)
class Observer:
  """Receives the progress of placing, and shows it.

  Attributes:
    shown: whether progress is shown on stderr: a bar on a terminal or in a notebook, else lines.
    listeners: functions that are called, too, whenever there is progress.
    spent_s: stage -> seconds.
  """

  shown: bool = False
  listeners: Tuple[Progress, ...] = ()
  spent_s: Dict[str, float] = dataclasses.field(
      default_factory=lambda: collections.defaultdict(float))

  def say(self, text: str, end: str = "\n") -> None:
    """Shows a message of one line."""
    if self.shown:
      print(text, end=end, file=sys.stderr, flush=True)

  def add(self, text: str) -> None:
    """Shows more about the stage that is under way, in its line."""
    self.say(f" {text} ...", end="")

  def say_times(self) -> None:
    """Shows where the time went, unless all of it was short."""
    long = [f"{name} {spent_s:.0f} s" for name, spent_s in self.spent_s.items() if spent_s >= 1]
    if long:
      self.say(f"Time: {', '.join(long)}.")

  @contextlib.contextmanager
  def stage(self, name: str) -> Iterator[None]:
    """Shows the name of a long stage that is no search, and at its end the time that it took."""
    started = time.monotonic()
    self.say(f"{name} ...", end="")
    try:
      yield
    finally:
      spent_s = time.monotonic() - started
      self.spent_s[name.partition(" ")[0].lower()] += spent_s
      self.say(f" {spent_s:.1f} s")

  @contextlib.contextmanager
  def search(self, budget: Budget) -> Iterator[Progress]:
    """Yields the function that a search calls to show progress, often thousands of times a second.

    Args:
      budget: the budget of the search.
    """
    # Somebody sees a bar on a terminal or in a notebook.
    watched = self.shown and ("ipykernel" in sys.modules or sys.stderr.isatty())
    pause_s, by_seconds = _BAR_SECONDS if watched else _LINE_SECONDS, budget.max_seconds is not None
    # The bar counts seconds, or evaluations if only evaluations are limited.
    total = budget.max_seconds if by_seconds else budget.max_evaluations
    unit, started = "s" if by_seconds else "placements", time.monotonic()
    shown = ("", started)
    with tqdm_auto.tqdm(
        total=total, file=sys.stderr, unit=unit, disable=not watched,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit}{postfix}") as bar:

      def tell(problem: PlacementProblem, placer: str) -> None:
        """Tells the listeners, and updates the bar, or from time to time writes a line."""
        nonlocal shown
        for listener in self.listeners:
          listener(problem, placer)
        # On a bar, a change of the placer is shown at once.
        early = time.monotonic() - shown[1] < pause_s and not (watched and placer != shown[0])
        if early or not self.shown:
          return
        shown, log = (placer, time.monotonic()), problem.search_log
        done = min(bar.total, log.seconds if by_seconds else log.evaluations)
        best = f"best {ms_text(log.best_objective_us)}, {log.evaluations:,} evaluated" if (
            np.isfinite(log.best_objective_us)) else ""
        if not watched:
          self.say(f"Placing ({placer}): {done:,.0f} of {total:,.0f} {unit}{best and ', ' + best}")
          return
        bar.n = done
        bar.set_description_str(f"Placing ({placer})", refresh=False)
        bar.set_postfix_str(best, refresh=False)
        bar.update(0)

      yield tell
    self.spent_s["search"] += time.monotonic() - started


SILENT = Observer()


def observer_of(progress: Union[bool, Progress, Observer, None]) -> Observer:
  """Returns the observer for a `progress` argument; None shows progress."""
  if isinstance(progress, Observer):
    return progress
  return Observer(listeners=(progress,)) if callable(progress) else Observer(progress is not False)
