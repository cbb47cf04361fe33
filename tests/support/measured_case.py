"""Fixtures of a small graph that two workers run, and two of its placements."""

import numpy as np
import pytest

import graph_files
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from worker_cluster import WORKER_CLUSTER


@pytest.fixture(name="cluster", scope="session")
def cluster_fixture():
  return Cluster.from_json(WORKER_CLUSTER)


@pytest.fixture(name="graph", scope="session")
def graph_fixture():
  return load_graph(graph_files.meta_graph_def())


@pytest.fixture(name="halves", scope="session")
def halves_fixture(graph, cluster):
  """Both devices are used, and tensors cross."""
  indices = np.random.default_rng(0).integers(0, 2, graph.num_ops, np.int32)[graph.colocation]
  return Placement.from_indices(graph, cluster, indices)


@pytest.fixture(name="single", scope="session")
def single_fixture(graph, cluster):
  return Placement.from_indices(graph, cluster, np.zeros(graph.num_ops, dtype=np.int32))
