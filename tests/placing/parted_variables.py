"""Keras models that train slices or copies of variables, on CPUs; prints what went otherwise.

Program of `parted_variables_test.py`; arguments: Keras, optimizer, replicas, number of devices,
thousands of bytes of each, directory, option of `plan_training`, its value.
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
  found.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
  return found


def run(optimizer, replicas, memory, directory, options):
  """Returns the strategy, and the largest differences to training without placing."""
  rng = np.random.default_rng(0)
  data = [rng.integers(0, 20, 20), rng.integers(0, 9, (20, 3))], rng.normal(size=(20, 1))
  plain, placed = model(optimizer), model(optimizer)
  # With little memory the table of users does not fit into a device beside its slots.
  local = placeto.Cluster.parse("local")
  local = dataclasses.replace(local, devices=tuple(
      dataclasses.replace(each, memory_bytes=memory) for each in local.devices))
  plan = placeto.plan_training(
      placed, local, batch_size=8, replicas=replicas, max_evaluations=40, look="no", **options)
  plan.save(f"{directory}/plan.json")
  training = placeto.compile_placed(placed, placement=f"{directory}/plan.json", verify=False)
  seen, written = [], []

  class Reads(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      seen.append(self.model.get_weights())

    def on_train_batch_end(self, batch, logs=None):
      written.append(sum(each._written for each in training._parts))

  def apart(one, other):
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(one, other))

  for each in (plain, placed):
    each.fit(*data, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[Reads()],
             validation_data=data)  # 20 examples: the last batch is of 4
  found = {"strategy": training.plan.replicated.strategy, "check": str(
      plan.result.replication.check), "written": written[-2:],
      "how": [(each.batch_size, each.how, each.replicas) for each in training.steps],
      "epochs": max(apart(*pair) for pair in zip(seen[:2], seen[2:]))}
  # From its second call on, no access from Python shows that the function writes.
  halves = [tf.function(lambda each=each: [
      variable.assign(variable * 0.5) for variable in each.trainable_variables])
            for each in (plain, placed)]
  # The program writes weights, which are trained on; an odd batch trains on one replica.
  for each in (plain, placed):
    each.set_weights([value / 2 for value in seen[0]])
    each.fit(*data, batch_size=8, shuffle=False, verbose=0)
    each.train_on_batch([column[:5] for column in data[0]], data[1][:5])
    each.train_on_batch([column[:8] for column in data[0]], data[1][:8])
  for _ in range(2 if "mirrored_variables" in options else 0):
    for each, halve in zip((plain, placed), halves):
      training._looked = 0.0, 0.0
      halve()
      each.fit(*data, batch_size=8, shuffle=False, verbose=0)
  found["apart"] = max([apart([part.numpy()], [each.whole.numpy()]) for each in training._parts
                        if each.copies for part in each.parts] or [0.0])
  found["evaluated"] = abs(
      plain.evaluate(*data, verbose=0)[0] - placed.evaluate(*data, verbose=0)[0])
  placed.save_weights(f"{directory}/weights.weights.h5")
  other = model(optimizer)
  other.load_weights(f"{directory}/weights.weights.h5")
  found["saved"] = apart(plain.get_weights(), other.get_weights())
  slots = [each.optimizer.variables for each in (plain, placed)]
  slots = [each() if callable(each) else each for each in slots]
  found["slots"] = apart(*([value.numpy() for value in each] for each in slots))
  training.undo()
  for each in (plain, placed):
    each.fit(*data, batch_size=8, shuffle=False, verbose=0)
  found["undone"] = apart(plain.get_weights(), placed.get_weights())
  return found


if __name__ == "__main__":
  print(json.dumps(run(sys.argv[2], int(sys.argv[3]), 1000 * int(sys.argv[5]), sys.argv[6], {
      sys.argv[7]: int(sys.argv[8])})))
