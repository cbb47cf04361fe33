"""Fixtures of the room."""

import pytest
import tensorflow as tf

from small_problems import two_chains  # noqa: F401


@pytest.fixture
def eagerly():
  """Without tracing, which takes longer than the few updates of a test."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


@pytest.fixture
def unsaved(monkeypatch):
  """Runs end without the SavedModel of their policy, which takes longer to trace than they do."""
  from placeto_tf.training import placeto_training, pointer_training

  for module in (placeto_training, pointer_training):
    monkeypatch.setattr(module, "save_policy", lambda policy, directory: None)
