"""Fixtures of the folder."""

import pytest

from graph_files import cluster, graph  # noqa: F401
from small_problems import make_cluster, make_problem, random_problem, two_chains  # noqa: F401
from tracing import eager_module, eagerly, without_saved_models  # noqa: F401


@pytest.fixture
def unsaved(monkeypatch):
  """Runs end without the SavedModel of their policy."""
  without_saved_models(monkeypatch)


@pytest.fixture(scope="module")
def unsaved_module():
  """`unsaved` for the tests and the fixtures of a whole module."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    without_saved_models(monkeypatch)
    yield
