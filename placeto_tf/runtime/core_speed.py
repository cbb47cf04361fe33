"""How fast the cores run just now, beside what is usual: by a probe, a fixed piece of work.

On a shared machine a core takes up to twice as long for the same work while a neighbour uses the
other half of it, for tenths of seconds or minutes, and each core for itself, or two of ours share
one for a while and slow each other down; no repetition averages that out. So those steps count
before and after which all cores, alone and with the others at work, were slower or faster than
usual by about the same factor, and their times are divided by what that factor means for a step.
"""

from __future__ import annotations

import concurrent.futures
import os
import time
import zlib
from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeVar

import numpy as np

_WORK = bytes(i * i * 2654435761 >> 13 & 255 for i in range(1 << 15))  # a millisecond to compress
_LEARNING_SECONDS, _LEAST_PROBES = 8.0, 10
_SLOWER, _FAST_PERCENTILE = 1.25, 3  # a neighbour costs 1.4 and more
_ALIKE = 1.2  # the slowest part of a probe over the fastest, both over what is usual
# What a step loses where the probe loses 1, in logarithms: one worker's steps of an LSTM took 1.34
# times as long, and split ones 1.34 and 1.39 times, while the probe took 1.4 times as long.
_OF_A_STEP = 0.87
_PAUSE_SECONDS = 0.01

T = TypeVar("T")


class CoreSpeed:
  """Tells how the speed of cores of this machine has changed, and which steps count.

  Attributes:
    usual_us: of the probe on each core, alone and then together; None until it is known.
  """

  def __init__(self, cores: Sequence[int], usual_us: Optional[Sequence[float]] = None):
    """Args: cores: to look at; without any, all is always as usual."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    self._cores = tuple(core for core in cores if core in mine)
    self._threads: List[concurrent.futures.ThreadPoolExecutor] = []
    self.usual_us = None if usual_us is None else tuple(usual_us)
    if self.usual_us is not None and len(self.usual_us) != 2 * len(self._cores):
      self.usual_us = None  # of other cores

  @classmethod
  def of(cls, runtime: Any, usual_us: Optional[Sequence[float]] = None) -> CoreSpeed:
    """Of the cores that a runtime's workers are bound to; of none where it does not say."""
    cores = sorted({core for cores in getattr(runtime, "cores", ()) for core in cores})
    return cls(cores, usual_us)

  def __enter__(self) -> CoreSpeed:
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def factor(self) -> Optional[float]:
    """What a step takes now over what it usually takes; None where the cores differ in that.

    Probes, which takes a millisecond or two a core; the first time, seconds.
    """
    if not self._cores:
      return 1.0
    if self.usual_us is None:
      self.learn()
    ratio = np.array(self._probe_us()) / np.array(self.usual_us)
    if ratio.max() > _ALIKE * ratio.min():
      return None
    return float(np.exp(_OF_A_STEP * np.log(ratio).mean()))

  def learn(self, seconds: float = _LEARNING_SECONDS) -> None:
    """Finds out what is usual: of what the cores are by turns, fast or slow, what they are most.

    The cores should be idle.
    """
    if not self._cores:
      return
    probes = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(probes) < _LEAST_PROBES:
      probes.append(self._probe_us())
      time.sleep(_PAUSE_SECONDS)
    table = np.array(probes)
    slow = table > _SLOWER * np.percentile(table, _FAST_PERCENTILE, axis=0)
    _, kind_of, counts = np.unique(slow, axis=0, return_inverse=True, return_counts=True)
    most = table[kind_of.reshape(-1) == counts.argmax()]
    self.usual_us = tuple(np.median(most, axis=0).tolist())

  def time(
      self, run: Callable[[], T], until: float, beat: Callable[[], None] = lambda: None
  ) -> Tuple[T, Optional[float]]:
    """Runs once, when the cores are alike or at a time of `time.monotonic`.

    Returns:
      What `run` returned, and by what its time is to be divided; None where it does not count.
    """
    before = self._wait(until, beat)
    result = run()
    beat()
    after = None if before is None else self.factor()
    if after is None or max(before, after) > _ALIKE * min(before, after):
      return result, None
    return result, (before * after) ** 0.5

  def collect(
      self, run: Callable[[], T], wanted: int, seconds: float,
      beat: Callable[[], None] = lambda: None) -> Tuple[List[Tuple[T, float]], bool]:
    """Runs again and again.

    Returns:
      `wanted` runs that count, and by what their times are to be divided; or, if there were not as
      many in so many seconds, all, as they are. And whether they count.
    """
    until = time.monotonic() + seconds
    runs: List[Tuple[T, Optional[float]]] = []
    while True:
      runs.append(self.time(run, until, beat))
      counting = [(result, factor) for result, factor in runs if factor is not None]
      if len(counting) >= wanted:
        return counting, True
      if len(runs) >= wanted and time.monotonic() >= until:
        return [(result, 1.0) for result, _ in runs], False

  def close(self) -> None:
    """Ends the probe's threads."""
    for thread in self._threads:
      thread.shutdown()
    self._threads = []

  def _wait(self, until: float, beat: Callable[[], None]) -> Optional[float]:
    """Waits until the cores are alike, but not for ever; the factor then."""
    while True:
      factor = self.factor()
      if factor is not None or time.monotonic() >= until:
        return factor
      beat()
      time.sleep(_PAUSE_SECONDS)

  def _probe_us(self) -> List[float]:
    """What the probe takes on each core, alone and then all at once."""
    if not self._threads:
      self._threads = [
          concurrent.futures.ThreadPoolExecutor(
              1, initializer=os.sched_setaffinity, initargs=(0, {core})) for core in self._cores]
    alone = [thread.submit(_work_us).result() for thread in self._threads]
    together = [thread.submit(_work_us) for thread in self._threads]
    return alone + [future.result() for future in together]


def _work_us() -> float:
  started = time.perf_counter()
  zlib.compress(_WORK, 6)  # which lets go of the interpreter's lock
  return (time.perf_counter() - started) * 1e6
