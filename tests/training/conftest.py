"""What the tests of several trainers share."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.search.problem import PlacementProblem


@pytest.fixture
def eagerly():
  """Without tracing, which takes longer than the few updates of a test."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


@pytest.fixture
def unsaved(monkeypatch):
  """Runs end without the SavedModel of their policy, which takes longer to trace than they do."""
  from placeto_tf.training import placeto_training, pointer_training

  for module in (placeto_training, pointer_training):
    monkeypatch.setattr(module, "save_policy", lambda policy, directory: None)


@pytest.fixture
def two_chains():
  """Two chains of ten ops of 1 ms, of different types, that exchange nothing: one each is best."""
  names = [f"{chain}{i}" for chain in "ab" for i in range(10)]
  edges = [(i, 0, i + 1) for i in range(19) if i != 9]
  graph = ComputationGraph.from_edges(names, ["A"] * 10 + ["B"] * 10, [1] * 20, edges)
  cluster = Cluster.parse("k80:2")
  costs = OpCosts(
      np.full((20, len(cluster.kind_devices)), 1000.0), np.full(20, 2e6), np.zeros(20),
      np.zeros(20))
  return PlacementProblem(graph, costs, cluster, Grouping(np.arange(20)))
