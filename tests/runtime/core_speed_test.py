"""What is taken for full speed, and which runs count; by a probe that is told what to say."""

import itertools

import pytest

from placeto_tf.runtime import core_speed
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.workers import InProcess

FAST, SLOW = [500.0, 520.0, 510.0, 515.0], [700.0, 730.0, 720.0, 725.0]


@pytest.fixture(name="speed")
def speed_fixture(monkeypatch):
  """Of two cores, whose probes a test gives in `says`."""
  monkeypatch.setattr(core_speed, "_PAUSE_SECONDS", 0.0)
  found = CoreSpeed(())
  found._cores = (0, 1)
  found.says = iter(())
  monkeypatch.setattr(found, "_probe_us", lambda: next(found.says))
  return found


def _learn(speed, probes, monkeypatch):
  monkeypatch.setattr(core_speed, "_LEAST_PROBES", len(probes))
  speed.says = iter(probes)
  speed.learn(seconds=0.0)


def test_full_speed_is_about_the_fastest_that_any_core_was(speed, monkeypatch):
  _learn(speed, [SLOW] * 9 + [FAST[:2] + SLOW[2:]] * 3, monkeypatch)
  assert 500 <= speed.full_speed_us <= 520


def test_cores_that_are_equally_slow_have_a_factor_and_cores_that_differ_have_none(speed):
  speed.full_speed_us = 500.0
  for probe, factor in [
      (FAST, 1.02**0.87), (SLOW, 1.437**0.87), ([2 * us for us in SLOW], 2.875**0.87),
      (FAST[:3] + [700.0], None), (SLOW[:1] + FAST[1:], None)]:
    speed.says = iter([probe])
    assert speed.factor() == (None if factor is None else pytest.approx(factor, rel=0.01))


def test_only_runs_between_like_probes_count(speed):
  speed.full_speed_us = 511.0
  mixed = FAST[:1] + SLOW[1:]
  # Before the second run it waits; the third and fourth are disturbed; the fifth is slow.
  speed.says = iter([FAST, FAST, mixed, mixed, FAST, FAST, FAST, mixed, FAST, SLOW, SLOW, SLOW])
  numbers = itertools.count()
  runs, counts = speed.collect(lambda: next(numbers), 3, seconds=60.0)
  assert counts and [run for run, _ in runs] == [0, 1, 4]
  assert [factor for _, factor in runs] == pytest.approx([1.0, 1.0, 1.4**0.87], rel=0.02)


def test_when_time_is_up_all_runs_count_as_they_are(speed):
  speed.full_speed_us = 511.0
  speed.says = itertools.repeat(FAST[:1] + SLOW[1:])
  numbers = itertools.count()
  assert speed.collect(lambda: next(numbers), 3, seconds=0.0) == (
      [(0, 1.0), (1, 1.0), (2, 1.0)], False)


def test_without_cores_all_runs_count_at_once():
  numbers = itertools.count()
  speed = CoreSpeed.of(InProcess())
  assert speed.collect(lambda: next(numbers), 2, seconds=0.0) == ([(0, 1.0), (1, 1.0)], True)
  assert speed.full_speed_us is None


def test_real_cores_are_probed():
  class Runtime:
    cores = ((0,),)

  speed = CoreSpeed.of(Runtime())
  if not speed._cores:
    pytest.skip("core 0 is not one of this process's")
  speed.learn(seconds=0.0)
  try:
    assert speed.full_speed_us > 10
  finally:
    speed.close()
