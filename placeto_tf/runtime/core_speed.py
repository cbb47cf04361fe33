"""Whether the cores run as fast as they usually do: by a probe, a fixed piece of work.

On a shared machine a core takes up to twice as long for the same work while a neighbour uses the
other half of it, for tenths of seconds or minutes, and each core for itself, or two of ours share
one for a while and slow each other down; no repetition averages that out. So those steps count
before and after which each core, alone and with the others at work, was as fast as it usually is,
be that with neighbours or without.
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
_WITHIN = (0.85, 1.2)  # over what is usual
_PAUSE_SECONDS = 0.01

T = TypeVar("T")


class CoreSpeed:
  """Tells steps at the usual speed from others, on cores of this machine.

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

  def is_usual(self) -> bool:
    """Probes, which takes a millisecond or two a core; the first time, seconds."""
    if not self._cores:
      return True
    if self.usual_us is None:
      self.learn()
    ratio = np.array(self._probe_us()) / np.array(self.usual_us)
    return bool(((_WITHIN[0] <= ratio) & (ratio <= _WITHIN[1])).all())

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

  def collect(
      self, run: Callable[[], T], wanted: int, seconds: float,
      beat: Callable[[], None] = lambda: None) -> Tuple[List[T], bool]:
    """Runs again and again.

    Returns:
      `wanted` runs at the usual speed; or, if there were not as many in so many seconds, the last
      `wanted` or more runs, whatever their speed. And whether they were at the usual speed.
    """
    until = time.monotonic() + seconds
    runs: List[T] = []
    usual: List[T] = []
    while len(usual) < wanted:
      before = self.wait(until, beat)
      runs.append(run())
      beat()
      if before and self.is_usual():
        usual.append(runs[-1])
      if len(runs) >= wanted and time.monotonic() >= until:
        return (runs, False) if len(usual) < wanted else (usual, True)
    return usual, True

  def close(self) -> None:
    """Ends the probe's threads."""
    for thread in self._threads:
      thread.shutdown()
    self._threads = []

  def wait(self, until: float, beat: Callable[[], None] = lambda: None) -> bool:
    """Waits for the usual speed until a time of `time.monotonic`; whether it came."""
    while not self.is_usual():
      if time.monotonic() >= until:
        return False
      beat()
      time.sleep(_PAUSE_SECONDS)
    return True

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
