"""How fast the cores run just now, beside their full speed: by a probe, a fixed piece of work.

On a shared machine a core takes up to twice as long for the same work while a neighbour uses the
other half of it, for tenths of seconds or minutes, and each core for itself, or two of ours share
one for a while and slow each other down; no repetition averages that out. So those steps count
before and after which all cores, alone and with the others at work, were about equally fast, and
their times are divided by what that speed means for a step: they are times at full speed.
"""

from __future__ import annotations

import concurrent.futures
import os
import time
import zlib
from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeVar

import numpy as np

from placeto_tf.runtime.protocol import Runtime

_WORK = bytes(i * i * 2654435761 >> 13 & 255 for i in range(1 << 15))  # a millisecond to compress
_LEARNING_SECONDS, _LEAST_PROBES = 8.0, 10
_FAST_PERCENTILE = 3
_ALIKE = 1.25  # the slowest part of a probe over the fastest; a neighbour costs 1.4 and more
# What a step loses where the probe loses 1, in logarithms: one worker's steps of an LSTM took 1.34
# times as long, and split ones 1.34 and 1.39 times, while the probe took 1.4 times as long.
_OF_A_STEP = 0.87
_PAUSE_SECONDS = 0.01

T = TypeVar("T")


class CoreSpeed:
  """Tells how the speed of cores of this machine has changed, and which steps count.

  Attributes:
    full_speed_us: of the probe; None until it is known.
  """

  def __init__(self, cores: Sequence[int], full_speed_us: Optional[float] = None):
    """Args: cores: to look at, all of one kind; without any, speed is always full."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    self._cores = tuple(core for core in cores if core in mine)
    self._threads: List[concurrent.futures.ThreadPoolExecutor] = []
    self.full_speed_us = full_speed_us

  @classmethod
  def of(cls, runtime: Runtime, full_speed_us: Optional[float] = None) -> CoreSpeed:
    """Of the cores that a runtime's workers are bound to; of none where it does not say.

    Args:
      runtime: whose workers are timed.
      full_speed_us: `core_probe_us` of the cluster, where calibration found it: what is measured
        is brought to the speed of what was calibrated. None or 0 where it is not known.
    """
    cores = sorted({core for cores in getattr(runtime, "cores", ()) for core in cores})
    return cls(cores, full_speed_us or None)

  @property
  def watches(self) -> bool:
    """Whether there are cores to look at."""
    return bool(self._cores)

  def __enter__(self) -> CoreSpeed:
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def factor(self) -> Optional[float]:
    """What a step takes now over what it takes at full speed; None where the cores are unequal.

    Probes, which takes a millisecond or two a core; the first time, seconds.
    """
    if not self._cores:
      return 1.0
    if self.full_speed_us is None:
      self.learn()
    ratio = np.array(self._probe_us()) / self.full_speed_us
    if ratio.max() > _ALIKE * ratio.min():
      return None
    return float(np.exp(_OF_A_STEP * np.log(ratio).mean()))

  def learn(self, seconds: float = _LEARNING_SECONDS) -> None:
    """Finds out the full speed: about the fastest that any core was in some time, while idle."""
    if not self._cores:
      return
    probes: List[Sequence[float]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(probes) < _LEAST_PROBES:
      probes.append(self._probe_us())
      time.sleep(_PAUSE_SECONDS)
    self.full_speed_us = float(np.percentile(probes, _FAST_PERCENTILE))

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
    if before is None or after is None or max(before, after) > _ALIKE * min(before, after):
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
