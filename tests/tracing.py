"""A fixture for tests that run TensorFlow functions only a few times."""

import pytest
import tensorflow as tf


@pytest.fixture
def eagerly():
  """Without tracing, which takes longer than the few updates of a test."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)
