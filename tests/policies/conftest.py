"""Fixtures of the folder."""

import pytest
import tensorflow as tf

from graph_files import cluster, graph  # noqa: F401
from small_problems import make_cluster, make_problem, random_problem, two_chains  # noqa: F401
from tracing import eagerly  # noqa: F401


def _without_saved_models(monkeypatch):
  from placeto_tf.policies.placeto import training
  from placeto_tf.policies.placeto.published import training as published_training

  for module in (training, published_training):
    for name in {"save_policy", "save_server"} & set(vars(module)):
      monkeypatch.setattr(module, name, lambda policy, directory: None)


@pytest.fixture
def unsaved(monkeypatch):
  """Runs end without the SavedModel of their policy, which takes longer to trace than they do."""
  _without_saved_models(monkeypatch)


@pytest.fixture(scope="module")
def eager_module():
  """`eagerly` for the tests and the fixtures of a whole module."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module")
def unsaved_module():
  """`unsaved` for the tests and the fixtures of a whole module."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    _without_saved_models(monkeypatch)
    yield
