"""What is said of work that fails or does not end."""

import pytest
import tensorflow as tf

from placeto_tf.errors import MeasurementError
from placeto_tf.runtime import supervision
from placeto_tf.runtime.protocol import Runtime


class _Ending(Runtime):
  """Of whose worker's end the system tells only when it is asked for the `seen_at`-th time."""

  def __init__(self, seen_at):
    self.seen_at, self.asked, self.open = seen_at, 0, True

  def lost(self):
    self.asked += 1
    return "worker 0 has ended (signal 9)" if self.asked >= self.seen_at else None

  def close(self):
    self.open = False


def _breaks(beat):
  raise tf.errors.UnavailableError(None, None, "Socket closed")


@pytest.mark.parametrize("seen_at, said", [
    (6, "worker 0 has ended (signal 9)"),
    (10**9, "TensorFlow failed with UnavailableError: Socket closed")])
def test_a_broken_connection_is_a_lost_worker_though_its_end_is_seen_later(
    monkeypatch, seen_at, said):
  monkeypatch.setattr(supervision, "POLL_SECONDS", 0.01)
  if seen_at > 100:  # it never ends
    monkeypatch.setattr(supervision, "_ENDING_SECONDS", 0.05)
  runtime = _Ending(seen_at)
  with pytest.raises(MeasurementError) as caught:
    supervision.supervise(runtime, _breaks, 600.0)
  assert str(caught.value) == said and not runtime.open
