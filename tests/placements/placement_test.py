import numpy as np
import pytest

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import ComputationGraph
from placeto_tf.placements import Placement


def _graph(names=("a", "b", "c")):
  return ComputationGraph.from_edges(
      names, ["Op"] * len(names), [1] * len(names),
      [(i, 0, i + 1) for i in range(len(names) - 1)], fetches=(names[-1],))


def test_indices_come_back_as_they_went_in():
  graph, cluster = _graph(), Cluster.parse("k80:2")
  placement = Placement.from_indices(graph, cluster, [1, 0, 2], method="single", seed=3)
  assert dict(placement) == {"a": "/GPU:1", "b": "/GPU:0", "c": "/CPU:0"}
  assert placement.devices == ("/GPU:0", "/GPU:1", "/CPU:0")
  assert (placement.fingerprint, placement.fetches) == (graph.fingerprint, ("c",))
  assert (placement.method, placement.seed) == ("single", 3)
  found = placement.indices(graph, cluster)
  assert found.dtype == np.int32 and found.tolist() == [1, 0, 2]


def test_a_placement_is_an_immutable_mapping():
  source = {"a": "/CPU:0"}
  placement = Placement(source, ("/CPU:0",))
  source["a"] = "/CPU:1"
  assert placement["a"] == "/CPU:0" and list(placement) == ["a"] and len(placement) == 1
  assert placement == Placement({"a": "/CPU:0"}, ("/CPU:0", "/CPU:1"), method="other")
  with pytest.raises(TypeError):
    placement.op_devices["a"] = "/CPU:1"
  with pytest.raises(AttributeError):
    placement.method = "single"


def test_devices_are_matched_in_any_spelling():
  placement = Placement(
      {"a": "/gpu:0", "b": "/device:GPU:1", "c": "/CPU:0"},
      ("/gpu:0", "/device:GPU:1", "/CPU:0"))
  assert placement.indices(_graph(), Cluster.parse("k80:2")).tolist() == [0, 1, 2]


@pytest.mark.parametrize("indices, culprit", [
    ([0, 1], "shape (2,)"),
    ([0.0, 1.0, 1.0], "float64"),
    ([0, -1, 0], "op 'b' is placed on device -1"),
    ([0, 0, 2], "op 'c' is placed on device 2"),
])
def test_indices_that_fit_no_graph_or_cluster_are_refused(indices, culprit):
  with pytest.raises(PlacementError) as caught:
    Placement.from_indices(_graph(), Cluster.parse("cpu:2"), indices)
  assert culprit in str(caught.value) and "expected" in str(caught.value)


@pytest.mark.parametrize("op_devices, culprit", [
    ({"a": "/CPU:0", "b": "/CPU:0"}, "no device for op 'c'"),
    ({"a": "/CPU:0", "b": "/CPU:0", "c": "/CPU:0", "d": "/CPU:0"}, "names op 'd'"),
    ({"a": "/CPU:0", "b": "/CPU:7", "c": "/CPU:0"}, "op 'b' is placed on '/CPU:7'"),
])
def test_a_placement_of_another_graph_or_cluster_is_refused(op_devices, culprit):
  placement = Placement(op_devices, ("/CPU:0", "/CPU:7"))
  with pytest.raises(PlacementError, match=culprit):
    placement.indices(_graph(), Cluster.parse("cpu:2"))
