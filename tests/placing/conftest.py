"""Fixtures of the room."""

import pytest

import graph_files
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import load_graph
from small_problems import make_cluster, make_problem, random_problem, two_chains  # noqa: F401
from tracing import eagerly  # noqa: F401


@pytest.fixture(name="cluster", scope="session")
def cluster_fixture():
  return Cluster.parse("cpu:2")


@pytest.fixture(name="graph", scope="session")
def graph_fixture():
  return load_graph(graph_files.meta_graph_def())
