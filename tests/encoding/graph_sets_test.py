import json
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_gnn as tfgnn

from placeto_tf import zoo
from placeto_tf.encoding import graph_sets, schema
from placeto_tf.errors import GraphError, PlacetoError
from placeto_tf.files import outputs
from placeto_tf.graphs import load_graph
from placeto_tf.zoo import families


@pytest.fixture(autouse=True)
def tiny_family(monkeypatch):
  def draw(rng, index):
    hidden = rng.choice((4, 8))
    return f"enas_recurrent:cell={index}:batch=2:steps=2:nodes=2:hidden={hidden}:vocab=9"

  monkeypatch.setitem(families.FAMILIES, "tiny", draw)


def _config(count, **settings):
  return graph_sets.GraphSetConfig(
      family="tiny", count=count, cluster="k80:2", max_groups=6, **settings)


def _make(config, out):
  """The rows, and the files that were made."""
  made = []
  rows = graph_sets.make_graph_set(
      config, str(out), progress=lambda done, total, row: made.append(row["file"]))
  return rows, made


def test_meta_graphs_and_their_graph_tensors_come_in_the_same_order(tmp_path):
  out = tmp_path / "set"
  rows, _ = _make(_config(2, first=3), out)
  assert sorted(os.listdir(out)) == [
      "graphs.json", "graphs.tfrecord", "schema.pbtxt", "tiny_0003.meta", "tiny_0004.meta"]
  assert schema.tfgnn.read_schema(str(out / "schema.pbtxt")) == schema.load_schema()
  assert json.loads((out / "graphs.json").read_text())["graphs"] == rows
  tensors = [tfgnn.parse_single_example(schema.graph_tensor_spec(), record)
             for record in tf.data.TFRecordDataset(str(out / "graphs.tfrecord"))]
  assert len(tensors) == 2
  for row, tensor in zip(rows, tensors):
    graph = load_graph(str(out / row["file"]))
    assert graph.fingerprint == load_graph(row["spec"]).fingerprint == row["fingerprint"]
    groups = tensor.node_sets[schema.GROUP]
    assert int(np.sum(groups["num_ops"])) == graph.num_ops == row["ops"]
    assert int(groups.sizes[0]) == row["groups"] <= 6
    step_us = tensor.context["step_time_us"].numpy().item()
    assert step_us == pytest.approx(row["single_device_us"])
    assert 0 < np.max(groups["start_us"]) < step_us


def test_a_stopped_run_goes_on_to_the_same_files(tmp_path):
  class StopError(Exception):
    pass

  def stop(done, total, row):
    raise StopError

  with pytest.raises(StopError):
    graph_sets.make_graph_set(_config(3), str(tmp_path / "stopped"), progress=stop)
  assert not (tmp_path / "stopped" / "graphs.tfrecord").exists()
  _, made = _make(_config(3), tmp_path / "stopped")
  assert made == ["tiny_0001.meta", "tiny_0002.meta"]
  _make(_config(3), tmp_path / "whole")
  for name in os.listdir(tmp_path / "whole"):
    assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
  assert set(os.listdir(tmp_path / "stopped")) == set(os.listdir(tmp_path / "whole"))
  assert _make(_config(3), tmp_path / "whole")[1] == []


def test_a_larger_count_adds_graphs_and_a_lost_file_is_made_anew(tmp_path):
  _make(_config(2), tmp_path / "set")
  assert _make(_config(3), tmp_path / "set")[1] == ["tiny_0002.meta"]
  (tmp_path / "set" / "tiny_0001.meta").unlink()
  assert _make(_config(3), tmp_path / "set")[1] == ["tiny_0001.meta"]
  (tmp_path / "set" / "graphs.tfrecord").unlink()
  assert len(_make(_config(3), tmp_path / "set")[1]) == 3
  _make(_config(3), tmp_path / "whole")
  for name in os.listdir(tmp_path / "whole"):
    assert (tmp_path / "set" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_directory_with_another_set_or_foreign_files_is_refused(tmp_path):
  _make(_config(1), tmp_path / "set")
  with pytest.raises(PlacetoError, match="first=0, now it is 5"):
    _make(_config(1, first=5), tmp_path / "set")
  foreign = tmp_path / "foreign"
  foreign.mkdir()
  (foreign / "notes.txt").write_text("mine")
  (foreign / "tiny_0000.meta").write_text("mine too")
  with pytest.raises(PlacetoError, match="tiny_0000.meta exists"):
    _make(_config(1), foreign)
  assert (foreign / "tiny_0000.meta").read_text() == "mine too"
  (foreign / "tiny_0000.meta").unlink()
  _make(_config(1), foreign)
  assert (foreign / "notes.txt").read_text() == "mine"


def test_damaged_results_are_named_with_the_remedy(tmp_path):
  out = tmp_path / "set"
  _make(_config(1), out)
  record = out / "graphs.tfrecord"
  record.write_bytes(record.read_bytes()[:-3])
  with pytest.raises(PlacetoError, match="graphs.tfrecord is damaged .*delete it"):
    _make(_config(1), out)
  (out / "graphs.json").write_text("{")
  with pytest.raises(PlacetoError, match="graphs.json.* is not JSON that can be read"):
    _make(_config(1), out)


def test_wrong_settings_are_refused_before_anything_is_written():
  with pytest.raises(GraphError, match="no family 'tony'"):
    graph_sets.GraphSetConfig(family="tony", count=1)
  with pytest.raises(PlacetoError, match="no grouping called 'x'"):
    _config(1, grouping="x")
  with pytest.raises(GraphError, match="holds no graphs"):
    _config(0)
  assert "tiny" in zoo.family_names()


@pytest.mark.parametrize("name", ["graphs.json", "graphs.tfrecord"])
def test_a_pipe_in_a_set_is_refused(tmp_path, name):
  manifest = {"version": 1, "config": graph_sets._settings(_config(1)), "graphs": []}
  (tmp_path / "graphs.json").write_text(json.dumps(manifest))
  (tmp_path / name).unlink(missing_ok=True)
  os.mkfifo(tmp_path / name)
  with pytest.raises(PlacetoError, match=f"{name}.*it is a pipe"):
    _make(_config(1), tmp_path)


@pytest.mark.parametrize("row", [
    7, {}, {"spec": "a"}, {"spec": 1, "file": "a", "ops": 1, "groups": 1, "single_device_us": 1},
    {"spec": "a", "file": "../a", "ops": 1, "groups": 1, "single_device_us": 1},
    {"spec": "a", "file": "a", "ops": 1, "groups": 1, "single_device_us": 1, "record": -1}])
def test_a_damaged_row_of_a_set_is_an_error(tmp_path, row):
  manifest = {"version": 1, "config": graph_sets._settings(_config(1)), "graphs": [row]}
  (tmp_path / "graphs.json").write_text(json.dumps(manifest))
  with pytest.raises(PlacetoError, match="graphs.json was not understood"):
    _make(_config(1), tmp_path)
  assert os.listdir(tmp_path) == ["graphs.json"]


def test_a_second_run_in_the_directory_says_so(tmp_path, monkeypatch):
  monkeypatch.setattr(outputs, "_RELEASE_S", 0)
  with outputs.alone(str(tmp_path)):
    with pytest.raises(PlacetoError, match="another run works in"):
      _make(_config(1), tmp_path)
  assert not os.listdir(tmp_path)
