"""Models in files: Keras files and SavedModels."""

import contextlib
import os

import numpy as np
import pytest

from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph, rewritten_proto


def _saved(keras, path, *layers):
  inputs = keras.Input([6])
  x = keras.layers.Dense(4, name="first")(inputs)
  for layer in layers:
    x = layer(x)
  model = keras.Model(inputs, x)
  if path.suffix == ".keras":
    model.save(path)
  else:
    # Keras 2 warns that HDF5 is legacy, Keras 3 logs it.
    with pytest.warns(UserWarning) if keras.__version__.startswith("2") else (
        contextlib.nullcontext()):
      model.save(path)
  return path


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.hdf5"])
def test_a_file_is_read_as_the_inference_of_its_model(keras, name, tmp_path):
  path = _saved(keras, tmp_path / name)
  for source in (path, str(path)):
    graph = load_graph(source, batch_size=3)
    assert list(graph.source.feed_shapes.values()) == [(3, 6)]
    assert graph.op_types.count("MatMul") == 1 and graph.op_types.count("VarHandleOp") == 2
    assert any("inference of the Keras model" in note for note in graph.notes)
  function = graph.source.tf_graph  # still has its variables
  assert function(np.ones([2, 6], np.float32)) is not None


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_code_in_a_file_is_only_run_if_the_file_is_trusted(keras, name, tmp_path):
  path = _saved(keras, tmp_path / name, keras.layers.Lambda(lambda x: x * 3.0, name="tripled"))
  with pytest.raises(GraphError, match="holds code of its own .*trusted=True"):
    load_graph(path, batch_size=2)
  assert "Mul" in load_graph(path, batch_size=2, trusted=True).op_types


def test_what_is_no_model_is_named(tmp_path):
  h5py = pytest.importorskip("h5py")
  with pytest.raises(GraphError, match="No such file"):
    load_graph(tmp_path / "nothing.keras")
  for name in ("text.keras", "text.h5"):
    (tmp_path / name).write_text("no model")
    with pytest.raises(GraphError, match="cannot read the Keras model"):
      load_graph(tmp_path / name)
  with h5py.File(tmp_path / "weights.h5", "w") as file:
    file["kernel"] = np.zeros(3)
  with pytest.raises(GraphError, match="only weights"):
    load_graph(tmp_path / "weights.h5")
  with pytest.raises(GraphError, match="leave format out"):
    load_graph(tmp_path / "text.keras", format="graph_def")


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
  import tensorflow as tf

  class Model(tf.Module):
    def __init__(self):
      self.weight = tf.Variable(tf.ones([4, 3]), name="weight")

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def predict(self, x):
      return {"scores": tf.matmul(x, self.weight)}

    @tf.function(input_signature=[tf.TensorSpec([2, 4], tf.float32)])
    def norm(self, x):
      return {"norm": tf.norm(x)}

  path = str(tmp_path_factory.mktemp("models") / "model")
  model = Model()
  tf.saved_model.save(
      model, path, signatures={"serving_default": model.predict, "norm": model.norm})
  return path


def test_the_default_signature_is_placed_with_its_inputs_and_outputs(saved_model):
  graph = load_graph(saved_model, batch_size=6)
  assert "MatMul" in graph.op_types and "SaveV2" not in graph.op_types
  assert graph.source.feed_shapes == {"serving_default_x:0": (6, 4)}
  assert graph.source.format == "saved_model"
  assert "only the signature 'serving_default' is placed" in graph.notes[0]
  assert "'norm'" in graph.notes[0]
  handle, read = graph.op_types.index("VarHandleOp"), graph.op_types.index("ReadVariableOp")
  assert graph.colocation[handle] == graph.colocation[read]
  proto = rewritten_proto(graph)
  assert set(graph.op_names) <= {node.name for node in proto.meta_graphs[0].graph_def.node}


def test_another_signature_can_be_named(saved_model):
  graph = load_graph(saved_model, signature="norm", tags=["serve"])
  assert "MatMul" not in graph.op_types and "Sqrt" in graph.op_types


def test_wrong_signatures_and_tags_name_those_there_are(saved_model):
  with pytest.raises(GraphError, match=r"'nope'; pass signature=.* with one of norm, serving_def"):
    load_graph(saved_model, signature="nope")
  with pytest.raises(GraphError, match=r"tags train; pass tags=.* with one of serve"):
    load_graph(saved_model, tags="train")
  with pytest.raises(GraphError, match="only a SavedModel"):
    load_graph(os.path.join(saved_model, "saved_model.pb"), signature="norm")


@pytest.mark.parametrize("content", [b"", b"\x00\xffnot a model", b"\x08\x01"])
def test_a_damaged_model_is_named(tmp_path, content):
  (tmp_path / "saved_model.pb").write_bytes(content)
  with pytest.raises(GraphError, match="saved_model.pb"):
    load_graph(str(tmp_path))
