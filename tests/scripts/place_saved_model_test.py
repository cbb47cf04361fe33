"""From a SavedModel directory to a placed one, by the main program."""

import json

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf


@pytest.fixture(scope="module", name="saved_model")
def saved_model_fixture(tmp_path_factory):
  class Model(tf.Module):
    def __init__(self):
      self.weights = tf.Variable(tf.random.stateless_normal([4, 4], [1, 2]), name="weights")

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def predict(self, x):
      for _ in tf.range(tf.shape(x)[0]):
        x = tf.tanh(x @ self.weights)
      return {"y": x}

    @tf.function(input_signature=[tf.TensorSpec([2, 4])])
    def double(self, x):
      return {"y": x * 2.0 + self.weights[:2]}

  model = Model()
  path = str(tmp_path_factory.mktemp("models") / "model")
  tf.saved_model.save(
      model, path, signatures={"serving_default": model.predict, "double": model.double})
  return path


@pytest.fixture(name="place_it")
def place_it_fixture(run_program, saved_model, tmp_path):
  def run(*args):
    return run_program(
        "place", f"--graph={saved_model}", "--cluster=cpu:1", f"--out={tmp_path / 'placed'}",
        "--max_evaluations=10", "--method=single", *args)

  return run


def _answer(model, key, value):
  return model.signatures[key](tf.constant(value))["y"].numpy()


def test_a_saved_model_goes_in_and_comes_out_placed(place_it, saved_model, tmp_path):
  done = place_it("--batch_size=2", "--trip_count=7")
  assert done.code == 0, done.err
  out = tmp_path / "placed"
  assert (out / "saved_model" / "saved_model.pb").exists() and not (out / "graph.pb").exists()
  assert "run 7 times, as given" in done.out
  ops = json.loads((out / "placement.json").read_text())["placement"]
  assert any(op.endswith("/matmul") for op in ops)
  value = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
  np.testing.assert_array_equal(
      _answer(placeto_tf.load_placed(str(out)), "serving_default", value),
      _answer(tf.saved_model.load(saved_model), "serving_default", value))
