"""Two workers for all tests that do not break them, and a small graph for them to run."""

import pytest
from measured_case import cluster_fixture, graph_fixture, halves_fixture, single_fixture  # noqa: F401

from placeto_tf.runtime.workers import LocalWorkers


@pytest.fixture(name="workers", scope="session")
def workers_fixture(socket_filters):
  with LocalWorkers(2, startup_seconds=600) as workers:
    yield workers
