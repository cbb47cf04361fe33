"""Trains a GAN in a loop of its own, placed if that is faster here, and plans it for other devices.

  scripts/with_env python examples/train_a_loop.py

Two logical CPU devices stand for the devices of a machine. They share its cores, so that the first
batch mostly finds that the step as it was is as fast, and the loop trains as before.
"""

from __future__ import annotations

import os
from typing import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402  after the environment is set

import placeto_tf as placeto  # noqa: E402

BATCH, NOISE, POINTS = 64, 8, 2


def gan_step() -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns a step that trains a generator and a discriminator of points on one batch."""
  layers = tf.keras.layers
  generator = tf.keras.Sequential([layers.Dense(128, "relu"), layers.Dense(POINTS)])
  discriminator = tf.keras.Sequential([layers.Dense(128, "relu"), layers.Dense(1)])
  optimizers = [tf.keras.optimizers.Adam(1e-3), tf.keras.optimizers.Adam(1e-3)]
  entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)

  @tf.function
  def train_step(points: tf.Tensor) -> tf.Tensor:
    noise = tf.random.normal([tf.shape(points)[0], NOISE])
    with tf.GradientTape(persistent=True) as tape:
      made = generator(noise)
      real, fake = discriminator(points), discriminator(made)
      losses = [entropy(tf.ones_like(fake), fake),
                entropy(tf.ones_like(real), real) + entropy(tf.zeros_like(fake), fake)]
    for loss, model, optimizer in zip(losses, (generator, discriminator), optimizers):
      optimizer.apply_gradients(zip(
          tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return tf.stack(losses)

  return train_step


def main() -> None:
  """Trains here, then plans for two V100s and prints where the step would gain."""
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  points = tf.random.normal([5 * BATCH + BATCH // 2, POINTS])
  data = tf.data.Dataset.from_tensor_slices(points).batch(BATCH)  # with a smaller last batch
  example = next(iter(data))

  train_step = gan_step()
  placed_step = placeto.compile_step(
      train_step, "local", args=[example], method="annealing", max_evaluations=200)
  for batch in data:
    losses = placed_step(batch)
  print(f"losses {losses.numpy()}\n{placed_step}")  # which step runs, and why

  plan = placeto.plan_step(
      train_step, "v100:2", args=[example], method="annealing", max_evaluations=200)
  print(f"\n{plan!r}")
  plan.save("plan.json")  # compile_step(train_step, placement="plan.json"), where the V100s are


if __name__ == "__main__":
  main()
