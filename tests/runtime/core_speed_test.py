"""The full speed, and the factor of a run; by a probe that is told what to say."""

import pytest

from placeto_tf.runtime import core_speed
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.workers import InProcess

FAST, SLOW = [500.0, 520.0, 510.0, 515.0], [700.0, 730.0, 720.0, 725.0]


@pytest.fixture(name="speed")
def speed_fixture(monkeypatch):
  """Of two cores, whose probes a test gives in `says`."""
  monkeypatch.setattr(core_speed, "_PAUSE_SECONDS", 0.0)
  monkeypatch.setattr(core_speed, "_LEARNING_SECONDS", 0.0)
  found = CoreSpeed(InProcess())
  found._cores = (0, 1)
  found.says = iter(())
  monkeypatch.setattr(found, "_probe_us", lambda: next(found.says))
  return found


def test_full_speed_is_about_the_fastest_that_any_core_was(speed, monkeypatch):
  probes = [SLOW] * 9 + [FAST[:2] + SLOW[2:]] * 3
  monkeypatch.setattr(core_speed, "_LEAST_PROBES", len(probes))
  speed.says = iter(probes)
  speed.learn()
  assert 500 <= speed.full_speed_us <= 520


def test_slow_cores_have_a_factor_by_which_a_step_feels_the_probe(speed):
  speed.full_speed_us = 500.0
  for probe, factor in [
      (FAST, 1.02**0.87), (SLOW, 1.437**0.87), ([2 * us for us in SLOW], 2.875**0.87)]:
    speed.says = iter([probe])
    assert speed.factor() == pytest.approx(factor, rel=0.01)


def test_a_run_has_the_factor_of_the_probes_around_it(speed):
  speed.full_speed_us = 511.0
  speed.says = iter([FAST, SLOW])
  result, factor = speed.time(lambda: "done")
  assert result == "done" and factor == pytest.approx(1.4**(0.87 / 2), rel=0.02)


def test_without_cores_the_speed_is_full():
  speed = CoreSpeed(InProcess())
  speed.learn()
  assert speed.time(lambda: 7) == (7, 1.0) and not speed.full_speed_us
