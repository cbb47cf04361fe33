"""Compares predictions of `compile_placed` for live Keras models with measurements on this machine.

  scripts/with_env python scripts/benchmarks/benchmark_live.py --out=DIR [--models=towers,...]

Each model is compiled, planned for two logical CPU devices, and trained for one batch; this times
the placed and the plain step in turns. The step that `compile_placed` keeps is written, too.
DIR/live.csv has a row per model, written when it is known. Other work on the machine changes both
times of a row, but not their order.
"""

from __future__ import annotations

import gc
import os
from typing import Any, Callable, Dict, Tuple

import pandas as pd
from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_string("out", None, "Directory of the results.", required=True)
flags.DEFINE_list("models", None, "Names of models; default: all.")
flags.DEFINE_integer("max_evaluations", 300, "Placements simulated for each model.", lower_bound=1)
flags.DEFINE_string("method", "annealing", "Placer of the planned steps.")

Build = Callable[[Any], Tuple[Any, Tuple[int, ...], int]]  # model, shape of an example, batch


def _towers(count: int, width: int, depth: int) -> Build:
  def build(keras: Any) -> Tuple[Any, Tuple[int, ...], int]:
    inputs = keras.Input([width])
    towers = []
    for _ in range(count):
      x = inputs
      for _ in range(depth):
        x = keras.layers.Dense(width, "relu")(x)
      towers.append(x)
    merged = keras.layers.Concatenate()(towers) if count > 1 else towers[0]
    return keras.Model(inputs, keras.layers.Dense(10, "softmax")(merged)), (width,), 64

  return build


def _recurrent(kind: str, layers: int) -> Build:
  def build(keras: Any) -> Tuple[Any, Tuple[int, ...], int]:
    inputs = keras.Input([20, 32])
    x = inputs
    for layer in range(layers):
      x = getattr(keras.layers, kind)(64, return_sequences=layer < layers - 1)(x)
    return keras.Model(inputs, keras.layers.Dense(10, "softmax")(x)), (20, 32), 32

  return build


def _attention(keras: Any) -> Tuple[Any, Tuple[int, ...], int]:
  inputs = keras.Input([32, 64])
  x = inputs
  for _ in range(2):
    x = keras.layers.LayerNormalization()(
        x + keras.layers.MultiHeadAttention(4, 16)(x, x))
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(64)(
        keras.layers.Dense(128, "relu")(x)))
  x = keras.layers.GlobalAveragePooling1D()(x)
  return keras.Model(inputs, keras.layers.Dense(10, "softmax")(x)), (32, 64), 32


def _application(name: str, **options: Any) -> Build:
  def build(keras: Any) -> Tuple[Any, Tuple[int, ...], int]:
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(64, 64, 3), classes=10, **options)
    return model, (64, 64, 3), 8

  return build


_MODELS: Dict[str, Build] = {
    "dense": _towers(1, 256, 4), "towers": _towers(2, 768, 4), "four_towers": _towers(4, 256, 3),
    "lstm": _recurrent("LSTM", 2), "gru": _recurrent("GRU", 2), "attention": _attention,
    "mobilenet": _application("MobileNet"), "mobilenet_v2": _application("MobileNetV2"),
    "resnet50": _application("ResNet50"), "densenet121": _application("DenseNet121")}


def _row(name: str) -> Dict[str, Any]:
  import numpy as np
  import tensorflow as tf

  import placeto_tf as placeto

  tf.keras.utils.set_random_seed(0)
  model, shape, batch = _MODELS[name](tf.keras)
  model.compile("sgd", "sparse_categorical_crossentropy")
  training = placeto.compile_placed(
      model, "local", batch_size=batch, method=FLAGS.method, seed=0,
      max_evaluations=FLAGS.max_evaluations)
  rng = np.random.default_rng(0)
  model.fit(rng.random((batch, *shape), np.float32), rng.integers(0, 10, [batch]),
            batch_size=batch, verbose=0)
  plan, trial = training.plan, training.trial
  assert plan is not None
  return {
      "model": name, "ops": plan.graph.num_ops, "promised_ms": f"{plan.step_time_us / 1e3:.2f}",
      "placed_ms": "" if trial is None else f"{trial.after_us / 1e3:.2f}",
      "unplaced_ms": "" if trial is None else f"{trial.before_us / 1e3:.2f}",
      "steps": 0 if trial is None else trial.steps,
      "kept": "placed" if training.applied is not None else "unplaced"}


def main() -> None:
  """Writes a row for each model."""
  entry_point.import_tensorflow_quietly()
  import tensorflow as tf

  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  os.makedirs(FLAGS.out, exist_ok=True)
  rows = []
  for name in FLAGS.models or _MODELS:
    rows.append(_row(name))
    pd.DataFrame(rows).to_csv(os.path.join(FLAGS.out, "live.csv"), index=False)
    print(rows[-1], flush=True)
    tf.keras.backend.clear_session()
    gc.collect()


if __name__ == "__main__":
  entry_point.run_program(main)
