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
  first = (tmp_path / "stopped" / "tiny_0000.meta").stat().st_mtime_ns
  _make(_config(3), tmp_path / "stopped")
  assert (tmp_path / "stopped" / "tiny_0000.meta").stat().st_mtime_ns == first
  _make(_config(3), tmp_path / "whole")
  _assert_alike(tmp_path / "stopped", tmp_path / "whole")


def _assert_alike(one, other):
  assert set(os.listdir(one)) == set(os.listdir(other))
  for name in os.listdir(one):
    assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_larger_count_adds_graphs_and_a_lost_file_is_made_anew(tmp_path):
  assert _make(_config(2), tmp_path / "set")[1] == ["tiny_0000.meta", "tiny_0001.meta"]
  (tmp_path / "set" / "tiny_0001.meta").unlink()
  (tmp_path / "set" / "graphs.tfrecord").unlink()
  _make(_config(3), tmp_path / "set")
  _make(_config(3), tmp_path / "whole")
  _assert_alike(tmp_path / "set", tmp_path / "whole")


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


@pytest.mark.parametrize("content, said", [
    ("{", "is not JSON that can be read"), ('{"config": 7}', "family=7, now it is 'tiny'")])
def test_a_damaged_manifest_is_named_with_the_remedy(tmp_path, content, said):
  (tmp_path / "graphs.json").write_text(content)
  with pytest.raises(PlacetoError, match=f"{said}.*choose another directory"):
    _make(_config(1), tmp_path)
  assert os.listdir(tmp_path) == ["graphs.json"]


def test_wrong_settings_are_refused_before_anything_is_written():
  with pytest.raises(GraphError, match="no family 'tony'"):
    graph_sets.GraphSetConfig(family="tony", count=1)
  with pytest.raises(PlacetoError, match="no grouping called 'x'"):
    _config(1, grouping="x")
  with pytest.raises(GraphError, match="holds no graphs"):
    _config(0)
  assert "tiny" in zoo.family_names()


def test_a_pipe_in_a_set_is_refused(tmp_path):
  os.mkfifo(tmp_path / "graphs.json")
  with pytest.raises(PlacetoError, match="graphs.json.*it is a pipe"):
    _make(_config(1), tmp_path)


def test_a_second_run_in_the_directory_says_so(tmp_path):
  with outputs.alone(str(tmp_path)):
    with pytest.raises(PlacetoError, match="another run works in"):
      _make(_config(1), tmp_path)
  assert not os.listdir(tmp_path)
