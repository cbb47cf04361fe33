"""Run as a program: fits Keras models plain and by `compile_placed` on two CPU devices and prints
what differed as JSON. Arguments: the Keras ("2" or "3"), names of `PARTS` (default: all)."""

import dataclasses
import json
import os
import re
import sys
import tempfile
import warnings

import numpy as np
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.clusters.device_names import find_device
from placeto_tf.graphs.concrete_functions import read_concrete_function
from placeto_tf.placing import placed_training
from placeto_tf.simulation import Simulator
from subprograms import decided_trial, error_of, the_keras

OPTIONS = dict(method="single", max_evaluations=20, seed=0, verify=False)
# Models as small as these are best on one device.
PINNED = dict(OPTIONS, pins=((".*kind.*", "/CPU:1"),))
ROWS, BATCH = 22, 8  # the last batch has 6


def two_losses(keras, middle="BatchNormalization", optimizer=None, **options):
  keras.utils.set_random_seed(3)
  layers = keras.layers
  words = keras.Input([5], dtype="int32")
  x = layers.Flatten()(layers.Embedding(20, 64)(words))
  x = layers.Dense(16, "relu")(x) if middle == "Dense" else layers.BatchNormalization()(x)
  model = keras.Model(
      words, [layers.Dense(3, name="kind")(x), layers.Dense(1, name="score")(x)])
  model.compile(
      optimizer or keras.optimizers.SGD(0.01, momentum=0.9),
      [keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"],
      metrics=[["accuracy"], ["mae"]], **options)
  return model


def rows():
  rng = np.random.default_rng(0)
  return (rng.integers(0, 20, [ROWS, 5]).astype(np.int32),
          [rng.integers(0, 3, [ROWS]), rng.random([ROWS, 1])])


def recorder(keras):
  """A callback that keeps the loss after each batch."""

  class Recorder(keras.callbacks.Callback):

    def __init__(self):
      super().__init__()
      self.losses = []

    def on_train_batch_end(self, batch, logs=None):
      self.losses.append((batch, float(logs["loss"])))

  return Recorder()


def same_weights(left, right):
  return all(np.array_equal(a, b) for a, b in zip(left.get_weights(), right.get_weights()))


def applied_us(training):
  """The step time in us, simulated with the devices that ops of the placed step have."""
  plan = training.plan
  nodes = read_concrete_function(training.applied.function).source.graph_def.node
  devices = {node.name: find_device(plan.cluster.device_names, node.device) for node in nodes}
  indices = np.array([devices[op] for op in plan.graph.op_names], np.int32)
  return Simulator(plan.graph, plan.costs, plan.cluster).simulate(indices).step_time_us


def fits(keras, planned, **options):
  """Two epochs with callbacks and validation, then a batch, evaluate, predict, save and load."""
  x, y = rows()
  plain, model = two_losses(keras, **options), two_losses(keras, **options)
  training = placeto.compile_placed(model, "cpu:2", **planned, **PINNED)
  before = str(training)
  found = {}
  seen = []
  for each in (plain, model):
    record = recorder(keras)
    history = each.fit(
        x[:16] if options else x, [part[:16] if options else part for part in y],
        batch_size=BATCH, epochs=2, verbose=0, shuffle=False, validation_data=(x, y), callbacks=[
            record, keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            keras.callbacks.EarlyStopping(patience=5)])
    steps = [] if options else [
        np.array(each.train_on_batch(x[:BATCH], [part[:BATCH] for part in y])).tolist()]
    seen.append({
        "losses": record.losses, "steps": steps,
        "history": {name: history.history[name] for name in ("loss", "val_loss")},
        "evaluated": np.array(each.evaluate(x, y, verbose=0)).tolist(),
        "iterations": int(np.array(each.optimizer.iterations))})
  found["equal"] = [name for name in seen[0] if seen[0][name] == seen[1][name]]
  found["all"] = list(seen[0])
  found["batches"] = len(seen[1]["losses"])
  found["same_weights"] = same_weights(plain, model)
  found["predicts"] = all(
      np.allclose(a, b, atol=1e-6) for a, b in zip(
          plain.predict(x, verbose=0), model.predict(x, verbose=0)))
  found["steps"] = [[step.batch_size, step.how] for step in training.steps]
  found["promised"], found["applied"] = training.plan.step_time_us, applied_us(training)
  found["devices"] = len({variable.device for variable in training.applied.function.variables})
  found["text"] = [before, str(training)]
  if options:
    return found
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    found["loaded"] = same_weights(model, loaded)
    for each in (model, loaded):
      each.fit(x[:BATCH], [part[:BATCH] for part in y], batch_size=BATCH, verbose=0)
    found["loaded_trains_on"] = np.allclose(
        np.concatenate([np.ravel(w) for w in model.get_weights()]),
        np.concatenate([np.ravel(w) for w in loaded.get_weights()]), atol=1e-5)
  return found


def replicas(keras):
  """Two replicas of each batch beside the plain step; a batch of 5 is not divided."""
  x, y = rows()
  found = {}

  def model():
    return two_losses(keras, "Dense", keras.optimizers.Adam(0.01))

  seen = []
  plain, placed = model(), model()
  training = placeto.compile_placed(placed, "cpu:2", replicas=2, max_evaluations=30, verify=False)
  for each in (plain, placed):
    record = recorder(keras)
    history = each.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False,
                       callbacks=[record]).history
    each.train_on_batch(x[:5], [part[:5] for part in y])
    seen.append((record.losses, [history[name] for name in ("loss", "kind_accuracy", "score_mae")]))
  found["losses"] = float(np.abs(np.subtract(*(one for one, _ in seen))).max())
  found["metrics"] = float(np.abs(np.subtract(*(two for _, two in seen))).max())
  found["weights"] = max(
      float(np.abs(a - b).max()) for a, b in zip(plain.get_weights(), placed.get_weights()))
  found["steps"] = [[step.batch_size, step.how, step.replicas] for step in training.steps]
  found["global_batch"] = training.result.replication.chosen.global_batch
  found["promised"], found["applied"] = training.plan.step_time_us, applied_us(training)
  found["devices"] = sorted({
      device[-1] for device in training.result.placement.values() if "CPU" in device})
  found["text"] = str(training)
  found["refused"] = error_of(lambda: placeto.compile_placed(
      model(), "cpu:2", replicas=2, batch_size=7, max_evaluations=5))
  return found


def verdicts(keras):
  """Trials on a clock that decides: a placed step that is faster, and one that is slower."""
  x, y = rows()
  found, real = {}, placed_training.in_turns
  for name, ratio in (("faster", 0.5), ("slower", 2.0)):
    plain, model = dropped(keras), dropped(keras)
    placed_training.in_turns = decided_trial(ratio)
    training = placeto.compile_placed(
        model, slow_cpus(), max_evaluations=200, root_dir="events")
    waiting = str(training)
    before = model.get_weights()
    losses = []
    for each in (plain, model):
      keras.utils.set_random_seed(5)
      record = recorder(keras)
      each.fit(x, y[1], batch_size=BATCH, epochs=2, verbose=0, shuffle=False, callbacks=[record])
      losses.append(record.losses)
    training.save(f"{name}.json")
    found[name] = {
        "waiting": waiting, "text": str(training), "repr": repr(training),
        "equal": losses[0] == losses[1], "same_weights": same_weights(plain, model),
        "moved": any(np.any(a != b) for a, b in zip(before, model.get_weights())),
        "devices": devices_of(model),
        "steps": [[step.batch_size, step.how] for step in training.steps],
        "applied": training.applied is not None}
  placed_training.in_turns = real
  again = dropped(keras)
  training = placeto.compile_placed(again, placement="faster.json", verify=False)
  keras.utils.set_random_seed(5)
  record = recorder(keras)
  again.fit(x, y[1], batch_size=BATCH, epochs=2, verbose=0, shuffle=False, callbacks=[record])
  found["loaded"] = {"equal": record.losses == losses[0], "devices": devices_of(again),
                     "text": str(training)}
  return found


def slow_cpus():
  """Two CPUs on which the towers of a small model are worth dividing."""
  cluster = placeto.Cluster.parse("cpu:2")
  return dataclasses.replace(cluster, devices=tuple(
      dataclasses.replace(device, efficiency=1e-4) for device in cluster.devices))


def devices_of(model):
  return sorted({getattr(each, "value", each).device[-5:] if not callable(
      getattr(each, "value", None)) else each.device[-5:] for each in model.trainable_variables})


def dropped(keras):
  """Two towers with dropout, whose random numbers a trial must not draw."""
  keras.utils.set_random_seed(3)
  layers = keras.layers
  words = keras.Input([5], dtype="int32")
  x = layers.Flatten()(layers.Embedding(20, 8)(words))
  towers = [layers.Dense(16, "relu", name=name)(x) for name in ("left", "right")]
  x = layers.Dropout(0.4)(layers.BatchNormalization()(layers.Concatenate()(towers)))
  model = keras.Model(words, layers.Dense(1)(x))
  model.compile("adam", "mse")
  return model


def plans(keras):
  """A plan for devices that are not here."""
  model = dropped(keras)
  before = model.get_weights()
  plan = placeto.plan_training(model, "v100:4", batch_size=BATCH, max_evaluations=20)
  plan.save("plan.json")
  plan.write_timeline("timeline.json")
  return {
      "unchanged": all(np.array_equal(a, b) for a, b in zip(before, model.get_weights())),
      "table": str(plan), "repr": repr(plan), "batch": plan.batch_size,
      "devices": list(placeto.Placement.load("plan.json").devices),
      "timeline": os.path.getsize("timeline.json"),
      "elsewhere": error_of(lambda: placeto.compile_placed(model, placement="plan.json")),
      "unsaid": error_of(lambda: placeto.plan_training(model, "v100:4"))}


def subclass(keras, loss="mse"):
  """A model of a class of its user's own."""

  class Own(keras.Model):

    def __init__(self):
      super().__init__()
      self.dense = keras.layers.Dense(1)

    def call(self, x):
      return self.dense(x)

  model = Own()
  model.compile("sgd", loss)
  return model


def batch_sizes(keras):
  """What batch_size= can say of a model's batches, and what it is told where it cannot."""

  def plan(model, **options):
    return placeto.plan_training(model, "cpu:2", max_evaluations=5, **(
        options or {"batch_size": 4}))

  def specs(model, **options):
    return tf.nest.map_structure(lambda spec: spec.shape.as_list(), plan(model, **options).specs)

  x = np.ones([4, 5], np.float32)
  called = subclass(keras)
  called(x)
  inputs = keras.Input([5])
  hidden = keras.layers.Dense(3)(inputs)
  named = keras.Model(inputs, {"b": keras.layers.Dense(1)(hidden), "a": hidden})
  named.compile("sgd", {"a": "mse", "b": "mse"})
  lossless = subclass(keras, loss=None)
  lossless(x)
  words = {name: keras.Input([None], dtype="int32", name=name) for name in ("words", "kinds")}
  embedded = keras.layers.Add()([keras.layers.Embedding(9, 2)(each) for each in words.values()])
  free = keras.Model(words, {
      "each": embedded, "kind": keras.layers.GlobalAveragePooling1D()(embedded)})
  free.compile("sgd", {"each": "mse", "kind": "sparse_categorical_crossentropy"})
  asked = error_of(lambda: plan(free))
  # The remedy: the specs that the error names, with sizes for None.
  sized = re.sub(r"shape=[^)]*", lambda shape: shape[0].replace("None", "32"),
                 asked.rpartition("takes them: ")[2])
  return {
      "called": error_of(lambda: plan(called)), "unbuilt": error_of(lambda: plan(subclass(keras))),
      "named": specs(named)[1], "lossless": error_of(lambda: plan(lossless)),
      "free": asked, "told": specs(free, data=eval(sized, {"tf": tf, "TensorSpec": tf.TensorSpec})),
      "data": plan(subclass(keras), data=(x, x[:, :1])).batch_size}


def composites(keras):
  """Ragged batches, and graphs of TF-GNN, whose sizes differ from batch to batch (Keras 2)."""
  if keras.__version__.startswith("3"):
    return {}

  def ragged():
    keras.utils.set_random_seed(1)
    words = keras.Input([None], dtype="int32", ragged=True)
    x = keras.layers.Embedding(9, 4)(words)
    x = keras.layers.Lambda(lambda x: tf.reduce_mean(x, axis=1))(x)
    return keras.Model(words, keras.layers.Dense(1)(x))

  words = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7]] * 5, dtype=tf.int32)
  y = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
  found = {"ragged": fitted_alike(
      ragged, tf.data.Dataset.from_tensor_slices((words, y)).batch(4))}
  try:
    import tensorflow_gnn as tfgnn
  except ImportError:
    return found

  def graph_of(nodes):
    return tfgnn.GraphTensor.from_pieces(node_sets={"atoms": tfgnn.NodeSet.from_fields(
        sizes=[nodes], features={"x": tf.ones([nodes, 4]) * nodes})})

  spec = graph_of(3).spec.relax(num_nodes=True)

  def examples():
    for i in range(12):
      yield graph_of(2 + i % 3), np.float32([i])

  data = tf.data.Dataset.from_generator(
      examples, output_signature=(spec, tf.TensorSpec([1]))).batch(4).map(
          lambda graph, y: (graph.merge_batch_to_components(), y))
  # Without it Keras itself counts one iteration more an epoch, as it asks for one batch too many.
  data = data.apply(tf.data.experimental.assert_cardinality(3))

  def gnn():
    keras.utils.set_random_seed(1)
    graph = keras.Input(type_spec=data.element_spec[0])
    x = tfgnn.keras.layers.Readout(node_set_name="atoms", feature_name="x")(graph)
    x = keras.layers.Lambda(lambda parts: tfgnn.pool_nodes_to_context(
        parts[0], "atoms", "mean", feature_value=parts[1]))([graph, keras.layers.Dense(8)(x)])
    return keras.Model(graph, keras.layers.Dense(1)(x))

  found["gnn"] = fitted_alike(gnn, data)
  return found


def fitted_alike(build, data):
  """Whether the losses of two epochs are those of the plain model, and how many steps there are."""
  losses = []
  for placed in (False, True):
    model = build()
    model.compile("adam", "mse")
    if placed:
      training = placeto.compile_placed(model, "cpu:2", pins=((".*dense.*", "/CPU:1"),), **OPTIONS)
    losses.append(model.fit(data, epochs=2, verbose=0).history["loss"])
  return {"equal": losses[0] == losses[1], "steps": [step.how for step in training.steps],
          "devices": devices_of(model)}


def changes(keras):
  """Another step, compiling again, undoing, and what cannot be placed."""
  x, y = np.ones([ROWS, 5]), np.zeros([ROWS, 1])
  model = keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  training = placeto.compile_placed(
      model, "cpu:2", data=tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), **OPTIONS)
  planned = training.result is not None
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    model.fit(x, y, batch_size=BATCH, verbose=0)
    model.compile("sgd", "mae")
    model.fit(x, y, batch_size=BATCH, verbose=0)
  again = placeto.compile_placed(model, "cpu:2", **OPTIONS)
  model.fit(x, y, batch_size=BATCH, verbose=0)
  ran = [step.how for step in again.steps]
  again.undo()
  model.fit(x, y, batch_size=BATCH, verbose=0)
  with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    mirrored = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    mirrored.compile("sgd", "mse")
  bare = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  eager = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  eager.compile("sgd", "mse", run_eagerly=True)
  return {
      "planned": planned, "warnings": [str(warning.message) for warning in seen
                                       if "compile_placed" in str(warning.message)],
      "again": ran, "own": "make_train_function" in vars(model),
      "errors": [error_of(lambda each=each: placeto.compile_placed(each, "cpu:2"))
                 for each in (mirrored, bare, eager, 3)]}


PARTS = {
    "first_batch": lambda keras: fits(keras, {}),
    "planned": lambda keras: fits(keras, {"batch_size": BATCH}, steps_per_execution=2),
    "changes": changes, "replicas": replicas, "verdicts": verdicts, "plans": plans,
    "batch_sizes": batch_sizes, "composites": composites}


def main(version, *parts):
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  tf.config.set_soft_device_placement(False)
  keras = the_keras(version)
  os.chdir(tempfile.mkdtemp())
  print(json.dumps({name: PARTS[name](keras) for name in parts or PARTS}))


if __name__ == "__main__":
  main(*sys.argv[1:])
