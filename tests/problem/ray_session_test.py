"""What is said where Ray cannot be had."""

import signal
import sys
import types

from placeto_tf.problem import executors


def _fake(init):
  """A module `ray` that is not connected and whose init does this."""
  return types.SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None,
                               cluster_resources=dict)


def test_ray_s_own_handler_of_sigterm_does_not_stay(monkeypatch):
  before = signal.getsignal(signal.SIGTERM)
  monkeypatch.setitem(sys.modules, "ray", _fake(
      lambda *_, **__: signal.signal(signal.SIGTERM, signal.SIG_IGN)))
  with executors.executor_at(executors.LOCAL):
    assert signal.getsignal(signal.SIGTERM) is before
