"""Fixtures of the folder."""

import pytest
import tensorflow as tf

from small_problems import two_chains  # noqa: F401
from tracing import eagerly  # noqa: F401


@pytest.fixture(scope="module")
def eager_module():
  """`eagerly` for the tests and the fixtures of a whole module."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)
