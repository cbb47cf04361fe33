"""What is said where Ray cannot be had."""

import signal
import sys
import types

import pytest

from placeto_tf.errors import SetupError
from placeto_tf.problem import executors


def _fake(init):
  """A module `ray` that is not connected and whose init does this."""
  return types.SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None,
                               cluster_resources=dict)


def test_without_ray_the_remedy_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "ray", None)
  with pytest.raises(SetupError, match=r"pip install 'placeto_tf\[ray\]'"):
    executors.import_ray()


def test_an_address_where_nothing_answers_is_named(monkeypatch):
  def init(*_, **__):
    raise ConnectionError("Could not find any running Ray instance.\nmore")

  monkeypatch.setitem(sys.modules, "ray", _fake(init))
  with pytest.raises(SetupError, match="Ray at 'auto' cannot be reached .Could not find"):
    executors.executor_at("auto").__enter__()


def test_ray_s_own_handler_of_sigterm_does_not_stay(monkeypatch):
  before = signal.getsignal(signal.SIGTERM)
  monkeypatch.setitem(sys.modules, "ray", _fake(
      lambda *_, **__: signal.signal(signal.SIGTERM, signal.SIG_IGN)))
  with executors.executor_at(executors.LOCAL):
    assert signal.getsignal(signal.SIGTERM) is before
