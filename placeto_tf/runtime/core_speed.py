"""Measures the ratio of the cores' present speed to their full speed by a probe, a fixed workload.

On a shared machine, a core takes up to twice as long for the same work while another program uses
its second hyper-thread. Such phases last from tenths of seconds to minutes and differ between
cores; two of our own cores may be hyper-threads of one core, too. Repetition does not average this
out. So all cores are probed before and after each timed step, one at a time and all at once. The
step time is divided by the slow-down that the probes predict, which gives a time at full speed.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import time
import zlib
from typing import Callable, List, Sequence, Tuple, TypeVar

import numpy as np

from placeto_tf.runtime.workers import Runtime

_WORK = bytes(i * i * 2654435761 >> 13 & 255 for i in range(1 << 15))  # a millisecond to compress
_LEARNING_SECONDS, _LEAST_PROBES = 8.0, 10
_FAST_PERCENTILE = 3
# Logarithm of a step's slow-down / logarithm of the probe's: steps of an LSTM on one worker took
# 1.34 times as long, and split ones 1.34 and 1.39 times, while the probe took 1.4 times as long.
_OF_A_STEP = 0.87
_PAUSE_SECONDS = 0.01

T = TypeVar("T")


class CoreSpeed:
  """Measures how the speed of this machine's cores has changed.

  Attributes:
    full_speed_us: time of the probe at full speed; 0 until known.
  """

  def __init__(self, runtime: Runtime, full_speed_us: float = 0.0):
    """Finds the cores that a runtime's workers are bound to; probes none yet.

    Args:
      runtime: whose workers are timed; without known cores, speed is always full.
      full_speed_us: `core_probe_us` of the cluster, where calibration found it: measured times
        are brought to the speed at which it was calibrated. 0 leaves times as they are.
    """
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    self._cores = sorted(mine.intersection(itertools.chain(*runtime.cores)))
    self._threads: List[concurrent.futures.ThreadPoolExecutor] = []
    self.full_speed_us = full_speed_us

  def factor(self) -> float:
    """Returns the present slow-down of a step (1 at full speed), by a short probe."""
    if not (self._cores and self.full_speed_us):
      return 1.0
    # [2 cores]: each core alone, then all together.
    ratio = np.array(self._probe_us()) / self.full_speed_us
    # Geometric mean over the cores, to the power that relates a step's slow-down to the probe's.
    return float(np.exp(_OF_A_STEP * np.log(ratio).mean()))

  def learn(self) -> None:
    """Measures the full speed: about the highest speed of any core in some time, while idle."""
    if not self._cores:
      return
    probes: List[Sequence[float]] = []
    until = time.monotonic() + _LEARNING_SECONDS
    while time.monotonic() < until or len(probes) < _LEAST_PROBES:
      probes.append(self._probe_us())
      time.sleep(_PAUSE_SECONDS)
    self.full_speed_us = float(np.percentile(probes, _FAST_PERCENTILE))

  def time(self, run: Callable[[], T]) -> Tuple[T, float]:
    """Runs once; returns the result and the divisor of its time."""
    before = self.factor()
    # Geometric mean of before and after.
    return run(), (before * self.factor()) ** 0.5

  def _probe_us(self) -> List[float]:
    """Returns the times of the probe on each core in us, alone and then all at once."""
    if not self._threads:
      self._threads = [
          concurrent.futures.ThreadPoolExecutor(
              1, initializer=os.sched_setaffinity, initargs=(0, {core})) for core in self._cores]
    # result() waits: one core after the other.
    alone = [thread.submit(_work_us).result() for thread in self._threads]
    together = [thread.submit(_work_us) for thread in self._threads]
    return alone + [future.result() for future in together]


def _work_us() -> float:
  started = time.perf_counter()
  zlib.compress(_WORK, 6)  # which releases the interpreter's lock
  return (time.perf_counter() - started) * 1e6
