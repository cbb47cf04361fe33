"""Trains a live Keras model placed, if that is faster on this machine, and plans it for another.

  scripts/with_env python examples/train_a_keras_model.py

Two logical CPU devices stand for the devices of a machine. They share its cores, so that the first
batch of `fit` mostly finds that the step as it was is as fast, and the model trains as before.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402  after the environment is set
import tensorflow as tf  # noqa: E402

import placeto_tf as placeto  # noqa: E402


def two_towers() -> tf.keras.Model:
  """Two towers of dense layers that can run side by side, compiled."""
  layers = tf.keras.layers
  inputs = tf.keras.Input([256])
  towers = []
  for _ in range(2):
    x = inputs
    for _ in range(3):
      x = layers.Dense(256, "relu")(x)
    towers.append(x)
  model = tf.keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(towers)))
  model.compile("adam", "mse")
  return model


def main() -> None:
  """Trains here, then plans for two V100s and prints where the step would gain."""
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  rng = np.random.default_rng(0)
  rows, targets = rng.random([320, 256], np.float32), rng.random([320, 1], np.float32)

  model = two_towers()
  training = placeto.compile_placed(
      model, "local", batch_size=64, method="annealing", max_evaluations=200, root_dir="live")
  model.fit(rows, targets, batch_size=64, verbose=0)
  print(training)  # which step runs, and why; the last line opens TensorBoard

  plan = placeto.plan_training(
      model, "v100:2", batch_size=64, method="annealing", max_evaluations=200)
  print(f"\n{plan!r}")
  plan.save("plan.json")  # compile_placed(model, placement="plan.json"), where the V100s are


if __name__ == "__main__":
  main()
