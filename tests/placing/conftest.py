"""Fixtures of the folder."""

import pytest

from graph_files import cluster, graph  # noqa: F401
from placeto_tf.placing import replica_search
from small_problems import make_cluster, make_problem, random_problem, two_chains  # noqa: F401
from tracing import eagerly  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def unhurried_checks():
  """Replicas are compared in all their steps, however busy the machine is."""
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(replica_search, "_LEAST_CHECK_S", 1e5)
    yield
