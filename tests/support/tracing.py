"""For tests that run TensorFlow functions only a few times, and train for a few iterations."""

import pytest
import tensorflow as tf


def _eagerly():
  """Without tracing, which takes longer than the few updates of a test."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


def without_saved_models(monkeypatch):
  """Runs end without the SavedModel of their policy, which takes longer to trace than they do."""
  from placeto_tf.policies.placeto import training
  from placeto_tf.policies.placeto.published import training as published_training

  for module in (training, published_training):
    for name in {"save_policy", "save_server"} & set(vars(module)):
      monkeypatch.setattr(module, name, lambda policy, directory: None)


eagerly = pytest.fixture(_eagerly)
eager_module = pytest.fixture(scope="module")(_eagerly)
