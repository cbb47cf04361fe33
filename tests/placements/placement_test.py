"""Placements and their JSON."""

import json
import os

import numpy as np
import pytest

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import ComputationGraph
from placeto_tf.placements import Placement, placement_json


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


_MINIMAL = {"devices": ["/GPU:0", "/CPU:0"], "placement": {"a": "/GPU:0", "b": "/CPU:0"}}


def _full():
  return Placement(
      {"a": "/GPU:0", "b": "/CPU:0"}, ("/GPU:0", "/CPU:0"), fingerprint="ab12", fetches=("b",),
      shapes={"a": (-1, 3)},
      cluster={"devices": [{"name": "/GPU:0"}]}, method="auto", seed=0,
      evaluations=np.int64(12), step_time_us=np.float64(34.5), lower_bound_us=20,
      peak_memory_bytes={"/GPU:0": np.float64(7), "/CPU:0": 0.0},
      baselines={"current": {"step_time_us": 40.0, "fits": True},
                 "metis": {"step_time_us": float("inf"), "fits": np.bool_(False)}})


def test_all_fields_survive_a_file(tmp_path):
  path = str(tmp_path / "placement.json")
  placement = _full()
  placement.save(path)
  loaded = Placement.load(path)
  assert loaded == placement
  for field in ("devices", "fingerprint", "fetches", "shapes", "cluster", "method", "seed",
                "evaluations", "step_time_us", "lower_bound_us", "peak_memory_bytes"):
    assert getattr(loaded, field) == getattr(placement, field), field
  assert loaded.baselines == {
      "current": {"step_time_us": 40.0, "fits": True},
      "metis": {"step_time_us": None, "fits": False}}


def test_devices_and_placement_are_enough(tmp_path):
  path = tmp_path / "placement.json"
  path.write_text(json.dumps(_MINIMAL))
  placement = Placement.load(str(path))
  assert dict(placement) == _MINIMAL["placement"]
  assert (placement.fingerprint, placement.seed, placement.baselines) == ("", None, {})
  placement.save(str(path))
  assert json.loads(path.read_text()) == {"version": 2, **_MINIMAL}


@pytest.mark.parametrize("field, value, culprit", [
    ("devices", [], "no devices"),
    ("devices", ["/GPU:0", "/GPU:0", "/CPU:0"], "'/GPU:0' appears twice"),
    ("placement", {"a": 0}, "the device of op 'a' is 0"),
    ("placement", {"a": "/GPU:9"}, "op 'a' is placed on '/GPU:9'"),
    ("version", 1, '"version" is 1'),
])
def test_a_wrong_field_of_a_file_by_hand_is_named(tmp_path, field, value, culprit):
  path = tmp_path / "placement.json"
  path.write_text(json.dumps({"version": 2, **_MINIMAL, field: value}))
  with pytest.raises(PlacementError) as caught:
    Placement.load(str(path))
  assert culprit in str(caught.value) and str(path) in str(caught.value)
  assert "expected" in str(caught.value) or "give each" in str(caught.value)


@pytest.mark.parametrize("content, culprit", [
    (b"", "not JSON"),
    (b"\xff\xfe\x00", "not text"),
    (b'{"placement": {}}', '"devices" is missing'),
])
def test_a_damaged_file_is_refused(tmp_path, content, culprit):
  path = tmp_path / "placement.json"
  path.write_bytes(content)
  with pytest.raises(PlacementError) as caught:
    Placement.load(str(path))
  assert culprit in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("field", ["version", *json.loads(json.dumps(
    placement_json.to_json(vars(_full()))))])
def test_a_file_of_which_any_field_was_changed_or_taken_out_is_refused(tmp_path, field):
  path = tmp_path / "placement.json"
  _full().save(str(path))
  found = json.loads(path.read_text())
  changed = {
      "version": 1, "graph": {**found["graph"], "fingerprint": "cd34"},
      "cluster": {"devices": [{"name": "/GPU:0", "memory_bytes": 1}]},
      "devices": ["/CPU:0", "/GPU:0"], "placement": {"a": "/CPU:0", "b": "/CPU:0"},
      "method": "single", "seed": 1, "evaluations": 13, "step_time_us": 34.4,
      "lower_bound_us": 21, "peak_memory_bytes": {"/GPU:0": 8.0, "/CPU:0": 0.0},
      "baselines": {"current": {"step_time_us": 41.0, "fits": True}}, "digest": "0" * 64}
  assert list(changed) == list(found) and changed[field] != found[field]
  for tampered in ({**found, field: changed[field]},
                   {key: value for key, value in found.items() if key != field}):
    path.write_text(json.dumps(tampered))
    with pytest.raises(PlacementError, match="place the graph again|is missing"):
      Placement.load(str(path))


@pytest.mark.parametrize("field, value", [
    ("graph", []), ("cluster", "k80:2"), ("seed", 0.5), ("baselines", {"single": 3})])
def test_a_file_by_hand_has_no_other_fields(tmp_path, field, value):
  path = tmp_path / "placement.json"
  path.write_text(json.dumps({"version": 2, **_MINIMAL, field: value}))
  with pytest.raises(PlacementError, match='digest.*keep "devices" and "placement" alone'):
    Placement.load(str(path))


def test_a_failing_save_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
  path = tmp_path / "placement.json"
  _full().save(str(path))
  before = path.read_text()

  def fail(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "replace", fail)
  with pytest.raises(PlacementError, match="No space left"):
    Placement(_MINIMAL["placement"], ("/GPU:0", "/CPU:0")).save(str(path))
  assert path.read_text() == before and os.listdir(tmp_path) == ["placement.json"]
