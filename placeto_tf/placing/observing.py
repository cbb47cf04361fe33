"""`Observer`: is told how a placing run goes; one that shows it on a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Callable, ContextManager, Iterator, Optional, Union

import numpy as np
from tqdm import auto as tqdm_auto

from placeto_tf.placing.explaining import ms_text
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem

_REFRESH_SECONDS = 0.2

# Called from time to time, with the problem and the name of the placer that works on it.
Progress = Callable[[PlacementProblem, str], None]


class Observer:
  """Is told how placing goes; this one tells nobody."""

  def say(self, text: str) -> None:
    """Is told something for the user to read, in a line."""

  def stage(self, name: str) -> ContextManager[None]:
    """Entered around long work that is no search."""
    return contextlib.nullcontext()

  def search(self, budget: Budget) -> ContextManager[Progress]:
    """Entered around a search; gives what is called from time to time, often thousands a second.

    Args: budget: of the search.
    """
    return contextlib.nullcontext(_nobody)


def _nobody(problem: PlacementProblem, placer: str) -> None:
  """Tells nobody."""


SILENT = Observer()


class Called(Observer):
  """Has a function of the user's told how far searches are."""

  def __init__(self, progress: Progress):
    self._progress = progress

  def search(self, budget: Budget) -> ContextManager[Progress]:
    """See `Observer`."""
    return contextlib.nullcontext(self._progress)


class Terminal(Observer):
  """Shows on stderr what happens."""

  def say(self, text: str) -> None:
    """See `Observer`."""
    print(text, file=sys.stderr, flush=True)

  def stage(self, name: str) -> ContextManager[None]:
    """See `Observer`."""
    return _stage(name)

  def search(self, budget: Budget) -> ContextManager[Progress]:
    """See `Observer`."""
    return _ProgressBar(budget)


def observer_of(progress: Union[bool, Progress, None]) -> Observer:
  """The observer of a `progress` argument: True shows, False does not, None where it is seen."""
  if callable(progress):
    return Called(progress)
  shown = is_watched() if progress is None else progress
  return Terminal() if shown else SILENT


@contextlib.contextmanager
def _stage(name: str) -> Iterator[None]:
  """Shows the name of what is done, and at its end how long it took."""
  started = time.monotonic()
  print(f"{name} ...", end="", flush=True, file=sys.stderr)
  try:
    yield
  except BaseException:
    print(file=sys.stderr)
    raise
  print(f" {time.monotonic() - started:.1f} s", file=sys.stderr)


class _ProgressBar:
  """A bar over the budget of a search."""

  def __init__(self, budget: Budget):
    self._budget = budget
    self._by_seconds = self._budget.max_seconds is not None
    self._bar: Optional[Any] = None
    self._shown = ("", 0.0)  # stage, when

  def __enter__(self) -> _ProgressBar:
    return self

  def __exit__(self, *_: object) -> None:
    if self._bar is not None:
      self._bar.close()

  def __call__(self, problem: PlacementProblem, stage_name: str) -> None:
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
    account = problem.account
    done = account.seconds if self._by_seconds else account.evaluations
    self._bar.n = min(done, self._bar.total)
    self._bar.set_description_str(f"Placing ({stage_name})", refresh=False)
    if np.isfinite(account.best_objective_us):
      self._bar.set_postfix_str(
          f"best {ms_text(account.best_objective_us)}, {account.evaluations:,} evaluated",
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
