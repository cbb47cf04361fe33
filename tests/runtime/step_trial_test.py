"""Tests for placeto_tf.runtime.step_trial, on a clock that only steps move."""

import itertools

import pytest

from placeto_tf.runtime.step_trial import in_turns


class Machine:
  """A clock, and steps that take as long as they are told to."""

  def __init__(self):
    self.now, self.ran = 0.0, []

  def clock(self):
    return self.now

  def step(self, name, seconds):
    times = itertools.cycle(seconds)

    def run():
      self.ran.append(name)
      self.now += next(times)

    return run


def _trial(before, after, **options):
  machine = Machine()
  trial = in_turns(
      machine.step("before", before), machine.step("after", after), clock=machine.clock, **options)
  return trial, machine.ran


def test_the_faster_step_is_known_after_twenty_steps_each():
  trial, ran = _trial([5e-3], [4e-3])
  assert trial.faster and trial.steps == 20
  assert trial.before_us == pytest.approx(5000) and trial.after_us == pytest.approx(4000)
  assert trial.low == trial.high == pytest.approx(0.8)
  assert ran.count("before") == ran.count("after") == 23  # three to warm up


def test_a_slower_step_and_an_equal_one_are_not_faster():
  assert not _trial([4e-3], [5e-3])[0].faster
  equal, _ = _trial([4e-3], [4e-3])
  assert not equal.faster and equal.steps == 60  # it went on, to find a difference


def test_a_gain_within_the_noise_is_none():
  """Median ratio below 1, but of eleven ratios five say otherwise, again and again."""
  trial, _ = _trial([1.0], [0.9] * 6 + [1.2] * 5, max_seconds=1e9)
  assert trial.after_us < trial.before_us and not trial.faster


def test_a_machine_that_slows_down_on_the_way_does_not_decide():
  """Both take twice as long from the middle on."""
  trial, _ = _trial([1e-3] * 13 + [2e-3] * 13, [0.8e-3] * 13 + [1.6e-3] * 13)
  assert trial.faster and trial.high == pytest.approx(0.8)
