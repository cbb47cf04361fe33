"""Fixtures of the room."""

import pytest

from small_problems import two_chains  # noqa: F401
from tracing import eagerly  # noqa: F401


@pytest.fixture
def unsaved(monkeypatch):
  """Runs end without the SavedModel of their policy, which takes longer to trace than they do."""
  from placeto_tf.training import placeto_training, pointer_training

  for module in (placeto_training, pointer_training):
    monkeypatch.setattr(module, "save_policy", lambda policy, directory: None)
