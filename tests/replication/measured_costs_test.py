"""Costs of replicas from times of the graph and of one of several replicas."""

import numpy as np
import pytest

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.replication import ReplicaSource, replicated_costs
from placeto_tf.runtime.calibrating import write_costs

CLUSTER = Cluster.parse("cpu:2")
WHOLE_US, QUARTER_US = 100.0, 40.0


@pytest.fixture(name="source", scope="module")
def source_fixture():
  return ReplicaSource("zoo:rnnlm:layers=1:batch=16:steps=2:hidden=4:vocab=11")


@pytest.fixture(name="path")
def path_fixture(source, tmp_path):
  """All ops take the same: 100 us on the whole batch, 40 on a quarter."""
  part = source.part(4)
  path = str(tmp_path / "costs.pb")
  write_costs(
      source.graph, CLUSTER, np.full((source.graph.num_ops, 2), WHOLE_US), path,
      (part, np.full((part.num_ops, 2), QUARTER_US)), replicas=4)
  return path


@pytest.mark.parametrize("replicas, expected_us", [
    (1, 100.0), (2, 60.0), (4, 40.0),
    (8, 30.0)])  # along the line; a proportional share would be 20
def test_a_time_is_on_the_line_between_two_sizes_of_the_batch(
    source, path, replicas, expected_us):
  made = source.replicas(replicas)
  costs = replicated_costs(made, CLUSTER, path)
  copies = made.original_of_op >= 0
  np.testing.assert_allclose(costs.compute_us[copies], expected_us)
  if replicas > 1:  # what joins replicas is in no graph that was measured
    estimated = replicated_costs(made, CLUSTER)
    np.testing.assert_array_equal(costs.compute_us[~copies], estimated.compute_us[~copies])
    assert any("were not measured on" in note for note in costs.notes)
    read = estimate_costs(made.graph, CLUSTER, source=path)  # as `measure` reads a placed graph
    np.testing.assert_allclose(read.compute_us[copies], expected_us)


def test_times_of_the_whole_batch_alone_say_nothing_of_replicas(source, tmp_path):
  path = str(tmp_path / "costs.pb")
  write_costs(source.graph, CLUSTER, np.full((source.graph.num_ops, 2), 100.0), path)
  made = source.replicas(2)
  costs = replicated_costs(made, CLUSTER, path)
  np.testing.assert_array_equal(costs.compute_us, replicated_costs(made, CLUSTER).compute_us)
  assert any("calibrate with --replicas=2" in note for note in costs.notes)


def test_times_of_the_replicated_graph_are_taken_as_they_are(source, tmp_path):
  made = source.replicas(2)
  path = str(tmp_path / "costs.pb")
  write_costs(made.graph, CLUSTER, np.full((made.graph.num_ops, 2), 7.0), path)
  np.testing.assert_allclose(replicated_costs(made, CLUSTER, path).compute_us, 7.0)
