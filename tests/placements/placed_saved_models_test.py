"""SavedModels that are written and run by sessions; eager_devices.py loads them eagerly."""

import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement, load_placed, write_placed
from placeto_tf.placements.writing import check_writable
from placeto_tf.runtime import session as session_lib

v1 = tf.compat.v1
_CLUSTER = Cluster.parse("cpu:2")
_KEY = "serving_default"


class _Model(tf.Module):
  def __init__(self, vocabulary):
    self.weights = tf.Variable(tf.random.stateless_normal([4, 3], [1, 2]), name="weights")
    self.words = tf.saved_model.Asset(vocabulary)

  @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
  def predict(self, x):
    for _ in tf.range(2):
      x = tf.tanh(x) * 1.5
    return {"scores": tf.matmul(x, self.weights), "input": x}

  @tf.function(input_signature=[tf.TensorSpec([2, 4], tf.float32)])
  def norm(self, x):
    return {"norm": tf.norm(x)}


def _save_v2(folder):
  vocabulary = os.path.join(folder, "words.txt")
  with open(vocabulary, "w", encoding="utf-8") as file:
    file.write("a\nb\n")
  model = _Model(vocabulary)
  path = os.path.join(folder, "v2")
  tf.saved_model.save(model, path, signatures={_KEY: model.predict, "norm": model.norm})
  return path


def _save_v1(folder):
  path = os.path.join(folder, "v1")
  with tf.Graph().as_default(), v1.Session() as session:
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    weights = v1.get_variable("weights", [4, 3], use_resource=True)
    scores = tf.matmul(tf.tanh(x), weights)
    session.run(v1.global_variables_initializer())
    v1.saved_model.simple_save(session, path, {"x": x}, {"scores": scores})
  return path


@pytest.fixture(params=[_save_v1, _save_v2], ids=["v1", "v2"], name="saved")
def saved_fixture(request, tmp_path):
  return request.param(str(tmp_path))


def _load(path):
  return load_graph(path, batch_size=2)


def _placement(graph, seed=0):
  indices = np.random.default_rng(seed).integers(0, 2, graph.num_ops, np.int32)
  return Placement.from_indices(graph, _CLUSTER, indices[graph.colocation])


def _serve(path, value, trace=False):
  """What a session that serves the signature answers, and where its ops ran."""
  metadata = v1.RunMetadata()
  with v1.Session(graph=tf.Graph(), config=session_lib.session_config(num_cpus=2)) as session:
    signature = v1.saved_model.load(session, ["serve"], path).signature_def[_KEY]
    answer = session.run(
        {name: info.name for name, info in signature.outputs.items()},
        {next(iter(signature.inputs.values())).name: value},
        options=session_lib.trace_options() if trace else None,
        run_metadata=metadata if trace else None)
  return answer, session_lib.executed_devices(metadata)


def test_a_placed_model_serves_the_same_answers_from_the_devices_asked_for(saved, tmp_path):
  graph = _load(saved)
  placement = _placement(graph)
  path = write_placed(graph, placement, str(tmp_path))
  assert path == str(tmp_path / "saved_model")
  value = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
  found, devices = _serve(path, value, trace=True)
  expected, _ = _serve(saved, value)
  assert set(found) == set(expected)
  for name in expected:
    np.testing.assert_array_equal(found[name], expected[name])
  ran = [op for op in graph.op_names if op in devices]
  assert "MatMul" in {graph.op_types[graph.op_index[op]] for op in ran}
  for op in ran:
    assert devices[op] == {placement[op].replace("/CPU", "/device:CPU")}


def test_all_files_but_the_graph_are_copied_and_the_original_is_left_alone(saved, tmp_path):
  def files(path):
    return {str(file.relative_to(path)): file.read_bytes()
            for file in pathlib.Path(path).rglob("*") if file.is_file()}

  before = files(saved)
  graph = _load(saved)
  placed = files(write_placed(graph, _placement(graph), str(tmp_path)))
  assert files(saved) == before
  before.pop("fingerprint.pb", None)
  assert set(placed) == set(before)
  assert {name for name in before if placed[name] != before[name]} == {"saved_model.pb"}


def test_a_placed_model_can_be_placed_again(saved, tmp_path):
  graph = _load(saved)
  placement = _placement(graph)
  again = _load(write_placed(graph, placement, str(tmp_path)))
  assert again.fingerprint == graph.fingerprint
  assert list(again.assigned_devices) == [
      placement[op].replace("/CPU", "/device:CPU") for op in graph.op_names]


def test_other_signatures_and_the_objects_still_work(tmp_path):
  saved = _save_v2(str(tmp_path))
  graph = _load(saved)
  single = Placement.from_indices(
      graph, Cluster.parse("cpu:1"), np.zeros(graph.num_ops, np.int32))
  write_placed(graph, single, str(tmp_path))
  placed, original = load_placed(tmp_path), tf.saved_model.load(saved)
  x = tf.ones([2, 4])
  np.testing.assert_array_equal(
      placed.signatures["norm"](x)["norm"], original.signatures["norm"](x)["norm"])
  np.testing.assert_array_equal(placed.predict(x)["scores"], original.predict(x)["scores"])
  np.testing.assert_array_equal(placed.weights, original.weights)
  with open(placed.words.asset_path.numpy(), encoding="utf-8") as file:
    assert file.read() == "a\nb\n"


def test_a_pipe_in_a_saved_model_is_refused_before_it_is_read_and_a_file_that_is_taken_away_helps(
    tmp_path):
  path = _save_v1(str(tmp_path))
  os.mkdir(os.path.join(path, "assets"))
  pipe = os.path.join(path, "assets", "words")
  os.mkfifo(pipe)
  graph = _load(path)
  for use in (lambda: check_writable(graph, str(tmp_path)), lambda: load_placed(path),
              lambda: write_placed(graph, _placement(graph), str(tmp_path))):
    with pytest.raises(GraphError, match="it is a pipe, expected a regular file.*take it away"):
      use()
  os.unlink(pipe)
  assert write_placed(graph, _placement(graph), str(tmp_path))
