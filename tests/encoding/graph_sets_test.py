import json
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_gnn as tfgnn

from placeto_tf.encoding import graph_sets, schema
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
      ".results.json", "graphs.json", "graphs.tfrecord", "schema.pbtxt", "tiny_0003.meta",
      "tiny_0004.meta"]
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


def test_the_same_settings_give_the_same_files_and_others_replace_them(tmp_path):
  assert _make(_config(2), tmp_path / "set")[1] == ["tiny_0000.meta", "tiny_0001.meta"]
  _make(_config(2), tmp_path / "other")
  files = sorted(os.listdir(tmp_path / "set"))
  assert files == sorted(os.listdir(tmp_path / "other"))
  for name in files:
    assert (tmp_path / "set" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
  _make(_config(1, first=5), tmp_path / "set")
  assert sorted(os.listdir(tmp_path / "set"))[-1] == "tiny_0005.meta"
