"""Models of the legacy Keras, and of Keras 3 where that is installed beside it."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.keras_models import inference_function, step_specs
from placeto_tf.placements.keras_batches import KerasStep


def _model(keras):
  keras.utils.set_random_seed(1)
  inputs = keras.Input([6, 6, 3])
  x = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
  x = keras.layers.BatchNormalization()(x)
  x = keras.layers.Dropout(0.5)(x)
  x = keras.layers.Dense(5, kernel_regularizer=keras.regularizers.L2(0.01))(
      keras.layers.Flatten()(x))
  return keras.Model(inputs, x)


def _step(model, batch_size=None):
  return KerasStep(model).trace(step_specs(model, batch_size))


def _sparse(keras):
  return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def test_inference_has_no_training_ops(keras):
  graph = load_graph(_model(keras), batch_size=3)
  assert {"Conv2D", "MatMul"} <= set(graph.op_types)
  assert not any("Random" in kind or "Backprop" in kind for kind in graph.op_types)
  assert list(graph.source.feed_shapes.values()) == [(3, 6, 6, 3)]


def test_a_training_step_has_gradients_and_updates_of_all_variables(keras):
  model = _model(keras)
  model.compile(keras.optimizers.Adam(0.01), _sparse(keras))
  function = _step(model, batch_size=4)
  graph = load_graph(function)
  assert "loss" in function.structured_outputs
  assert "Conv2DBackpropFilter" in graph.op_types
  assert sorted(graph.source.feed_shapes.values()) == [(4,), (4, 6, 6, 3)]
  # Weights with two slots each, the running moments, the iterations and the learning rate.
  assert graph.op_types.count("VarHandleOp") >= 3 * len(model.trainable_variables) + 4
  assert sum(kind.startswith("Assign") for kind in graph.op_types) >= 12
  assert "PartitionedCall" not in graph.op_types and not graph.notes


def test_tracing_leaves_values_alone_and_running_trains(keras):
  model = _model(keras)
  before = [np.array(value) for value in model.get_weights()]
  model.compile(keras.optimizers.SGD(0.1), _sparse(keras))
  function = _step(model, batch_size=4)
  for old, new in zip(before, model.get_weights()):
    np.testing.assert_array_equal(old, new)
  images = tf.reshape(tf.range(4 * 6 * 6 * 3, dtype=tf.float32) / 400, [4, 6, 6, 3])
  losses = [float(function((images, tf.constant([0, 1, 2, 3])))["loss"]) for _ in range(20)]
  assert losses[-1] < losses[0]


def test_updates_that_xla_compiles_on_gpus_are_traced_without_it(keras):
  model, optimizer = _model(keras), keras.optimizers.SGD(0.1)
  optimizer.jit_compile = True  # as Keras 2 has it where there is a GPU
  model.compile(optimizer, "mse", jit_compile=False)
  graph = load_graph(_step(model), batch_size=4)
  assert not any(kind.endswith("PartitionedCall") for kind in graph.op_types)
  assert optimizer.jit_compile is True


def test_several_inputs_and_outputs(keras):
  inputs = {name: keras.Input([4], name=name) for name in ("left", "right")}
  left = keras.layers.Dense(2)(inputs["left"])
  model = keras.Model(inputs, [left, keras.layers.Dense(3)(inputs["right"])])
  model.compile("sgd", ["mse", "mae"])
  graph = load_graph(_step(model, batch_size=2))
  assert sorted(graph.source.feed_shapes.values()) == [(2, 2), (2, 3), (2, 4), (2, 4)]
  assert load_graph(inference_function(model, batch_size=2)).op_types.count("MatMul") == 2
  model.compile("sgd", ["mse", "mse", "mse"])
  with pytest.raises(GraphError, match="2 outputs, but 3 losses"):
    _step(model)


def test_what_is_missing_is_named(keras):
  model = _model(keras)
  with pytest.raises(GraphError, match="not compiled"):
    _step(model)
  model.compile("adam", lambda target, predicted: target.no_such_attribute)
  with pytest.raises(GraphError, match="cannot be traced"):
    _step(model)
  with pytest.raises(GraphError, match="does not know its inputs"):
    load_graph(keras.Sequential([keras.layers.Dense(3)]))


def test_a_model_that_is_compiled_for_xla_is_traced_op_by_op(keras):
  model = _model(keras)
  model.compile("sgd", "mse", jit_compile=True)
  assert "Conv2DBackpropFilter" in load_graph(_step(model, batch_size=2)).op_types
