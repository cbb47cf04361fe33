"""Keras models whose tables train in slices, on CPUs; prints what went otherwise than unplaced.

Program of `sliced_tables_test.py`; arguments: Keras, optimizer, replicas, number of devices,
thousands of bytes of each, directory.
"""

import dataclasses
import json
import sys

from subprograms import the_keras

keras = the_keras(sys.argv[1])

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [
    tf.config.LogicalDeviceConfiguration()] * int(sys.argv[4]))

import placeto_tf as placeto  # noqa: E402


def model(optimizer):
  keras.utils.set_random_seed(1)
  user, item = keras.Input([], dtype="int64"), keras.Input([3], dtype="int64")
  users = keras.layers.Embedding(4000, 64, name="users")(user)
  items = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(700, 64, name="items")(item))
  towers = [keras.layers.Dense(6, "tanh")(rows) for rows in (users, items)]
  found = keras.Model([user, item], keras.layers.Dot(-1)(towers))
  found.compile(optimizer, "mse", jit_compile=False)
  return found


def run(optimizer, replicas, memory, directory):
  """Returns the strategy, and the largest differences to training without placing."""
  rng = np.random.default_rng(0)
  data = [rng.integers(0, 20, 20), rng.integers(0, 9, (20, 3))], rng.normal(size=(20, 1))
  plain, placed = model(optimizer), model(optimizer)
  # The table of users does not fit into a device beside its slots.
  local = placeto.Cluster.parse("local")
  local = dataclasses.replace(local, devices=tuple(
      dataclasses.replace(each, memory_bytes=memory) for each in local.devices))
  plan = placeto.plan_training(
      placed, local, batch_size=8, slices=2, replicas=replicas, max_evaluations=40, look="no")
  plan.save(f"{directory}/plan.json")
  training = placeto.compile_placed(placed, placement=f"{directory}/plan.json", verify=False)
  seen = []

  class Reads(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      seen.append(self.model.get_weights())

  def apart(one, other):
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(one, other))

  for each in (plain, placed):
    each.fit(*data, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[Reads()],
             validation_data=data)  # 20 examples: the last batch is of 4
  found = {"strategy": training.plan.replicated.strategy, "check": str(
      plan.result.replication.check),
      "how": [(each.batch_size, each.how) for each in training.steps],
      "epochs": max(apart(*pair) for pair in zip(seen[:2], seen[2:]))}
  # The program writes weights, which are trained on.
  for each in (plain, placed):
    each.set_weights([value / 2 for value in seen[0]])
    each.fit(*data, batch_size=8, shuffle=False, verbose=0)
  found["evaluated"] = abs(plain.evaluate(*data, verbose=0) - placed.evaluate(*data, verbose=0))
  placed.save_weights(f"{directory}/weights.weights.h5")
  other = model(optimizer)
  other.load_weights(f"{directory}/weights.weights.h5")
  found["saved"] = apart(plain.get_weights(), other.get_weights())
  slots = [each.optimizer.variables for each in (plain, placed)]
  slots = [each() if callable(each) else each for each in slots]
  found["slots"] = apart(*([value.numpy() for value in each] for each in slots))
  training.undo()
  found["undone"] = apart(plain.get_weights(), placed.get_weights())
  placed.fit(*data, batch_size=8, verbose=0)
  return found


if __name__ == "__main__":
  print(json.dumps(run(sys.argv[2], int(sys.argv[3]), 1000 * int(sys.argv[5]), sys.argv[6])))
