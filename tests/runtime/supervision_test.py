"""What is said of work that fails."""

import pytest
import tensorflow as tf

from placeto_tf.errors import MeasurementError
from placeto_tf.runtime import supervision
from placeto_tf.runtime.workers import Runtime


class _Ending(Runtime):
  """Of whose worker's end the system tells only when it is asked for the `seen_at`-th time."""

  def __init__(self, seen_at):
    self.seen_at, self.asked, self.open = seen_at, 0, True

  def lost(self):
    self.asked += 1
    return "worker 0 has ended (signal 9)" if self.asked >= self.seen_at else None

  def close(self):
    self.open = False


@pytest.mark.parametrize("seen_at, error, said", [
    (6, tf.errors.UnavailableError, "worker 0 has ended (signal 9)"),
    (10**9, tf.errors.UnavailableError, "TensorFlow failed with UnavailableError: Socket closed"),
    (10**9, tf.errors.DeadlineExceededError, "a step did not end within its time-out")])
def test_a_broken_connection_is_a_lost_worker_though_its_end_is_seen_later(
    monkeypatch, seen_at, error, said):
  monkeypatch.setattr(supervision, "_POLL_SECONDS", 0.01)
  if seen_at > 100:  # it never ends
    monkeypatch.setattr(supervision, "_ENDING_SECONDS", 0.05)
  runtime = _Ending(seen_at)
  with pytest.raises(MeasurementError) as caught:
    with supervision.named_failures(runtime):
      raise error(None, None, "Socket closed")
  assert str(caught.value).startswith(said) and not runtime.open


@pytest.mark.parametrize("error, raised, closes", [
    (KeyboardInterrupt(), KeyboardInterrupt, True), (ValueError("a bug"), ValueError, False),
    (tf.errors.ResourceExhaustedError(None, None, "OOM"), MeasurementError, False)])
def test_workers_are_closed_only_where_they_may_be_in_a_bad_state(error, raised, closes):
  runtime = _Ending(10**9)
  with pytest.raises(raised):
    with supervision.named_failures(runtime):
      raise error
  assert runtime.open != closes
