import json
import os

import numpy as np
import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.placements import Placement, placement_json

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
