
import numpy as np
import pytest

from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph


def _saved(keras, path, *layers):
  inputs = keras.Input([6])
  x = keras.layers.Dense(4, name="first")(inputs)
  for layer in layers:
    x = layer(x)
  model = keras.Model(inputs, x)
  if path.suffix == ".keras":
    model.save(path)
  else:
    with pytest.warns(UserWarning) if keras.__version__.startswith("2") else _silent():
      model.save(path)
  return path


class _silent:  # Keras 3 logs that HDF5 is legacy, Keras 2 warns

  def __enter__(self):
    return self

  def __exit__(self, *_):
    return False


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
