"""Run as a program: trains loops as they are and by `compile_step` on two CPU devices, and prints
for each loop and mode what differs: a line each to stderr, and all as JSON. A process of its own,
because devices are fixed when TensorFlow first runs.

  PYTHONPATH=tests/support scripts/with_env python tests/placing/train_loops.py KERAS MODES [LOOPS]

KERAS is 2 or 3. MODES are of placed, partial, replicas, replicas-partial and cases, or all, which
trains all loops placed, with replicas, and with replicas and a smaller last batch. A mode may name
its loops, as in `partial=gan+vae`. The table of docs/training_loops.md is from `3 all`.
"""

import dataclasses
import functools
import json
import os
import sys
import tempfile
import warnings

import numpy as np
import tensorflow as tf
import training_loops

import placeto_tf as placeto
from subprograms import decided_trial, error_of, the_keras


def numbers(results):
  return [np.asarray(each, np.float64) for each in tf.nest.flatten(results)]


def train(keras, name, compile_step, partial):
  """Losses and variables after a loop, and its step."""
  keras.utils.set_random_seed(3)
  step, batches, variables = training_loops.LOOPS[name](keras, partial)
  step = compile_step(step)
  losses = [step(**batch) if isinstance(batch, dict) else step(*batch) for batch in batches]
  return numbers(losses), numbers([each.numpy() for each in variables()]), step


@functools.cache
def plain(keras, name, partial):
  """Losses and variables of a loop as its user wrote it."""
  return train(keras, name, lambda step: step, partial)[:2]


def compared(keras, name, mode):
  """One loop trained plain and placed: how far apart they are, or what was refused."""
  partial = mode.endswith("partial")
  # What the check of replicas compares is compared here, over whole batches and a smaller one.
  options = {"max_evaluations": 30, "verify": False, "check_replicas": False}
  if "replicas" in mode:
    options["replicas"] = 2
  losses, variables = plain(keras, name, partial)
  try:
    placed_losses, placed, step = train(
        keras, name, lambda step: placeto.compile_step(step, "cpu:2", **options), partial)
  except placeto.PlacetoError as error:
    return {"refused": str(error)}
  except Exception as error:
    return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:1500]}"}
  if len(variables) != len(placed):
    return {"error": f"{len(placed)} variables instead of {len(variables)}"}
  far = [max((float(np.abs(a - b).max() / max(1.0, np.abs(a).max()))
              for a, b in zip(one, other) if a.size), default=0.0)
         for one, other in ((losses, placed_losses), (variables, placed))]
  plan = step.plan
  return {
      "losses": far[0], "variables": far[1], "replicas": plan.replicas,
      "steps": [[each.how, each.replicas] for each in step.steps],
      "devices": len(set(plan.placement.values()))}


def line(case):
  """What was found of a loop, for a reader."""
  if "losses" in case:
    return f"{max(case['losses'], case['variables']):.1e} with {case['replicas']} replicas"
  return f"refused: {case['refused']}" if "refused" in case else f"FAILED: {case['error']}"


def cases(keras):
  """Functions of several kinds, what is refused, plans, and which step is kept."""
  from placeto_tf.placing import placed_training

  x, y = tf.ones([8, 5]), tf.zeros([8, 1])
  options = {"max_evaluations": 10, "verify": False, "check_replicas": False}

  def made():
    keras.utils.set_random_seed(3)
    model, optimizer = training_loops.dense(keras, 16, 4), keras.optimizers.SGD(0.01, 0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(x, y):
      with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
      training_loops.update(tape, loss, optimizer, model)
      return loss

    return train_step

  def labels(size):
    return tf.ones([size, 5]), tf.zeros([size], tf.int32)

  found = {}
  # A ConcreteFunction has one batch size, which replicas divide and which never grows.
  step = made()
  traced = step.get_concrete_function(*labels(8))
  placed = placeto.compile_step(traced, "cpu:2", args=labels(8), replicas=2, **options)
  found["concrete"] = {
      "loss": bool(np.isfinite(placed(*labels(8)))), "replicas": placed.plan.replicas,
      "batch": placed.plan.replicated.global_batch, "other": error_of(lambda: placed(*labels(6)))}
  placing = placeto.place(traced, "cpu:2", replicas=2, max_evaluations=5)
  found["concrete"]["placed"] = placing.replication.chosen.global_batch

  # A plan of one process is carried out by another step of the kind.
  step = made()
  plan = placeto.plan_step(step, "cpu:2", args=labels(8), replicas=2, max_evaluations=10,
                           check_replicas=False)
  plan.save("plan.json")
  placed = placeto.compile_step(made(), placement="plan.json", verify=False)
  found["plan"] = {
      "repr": repr(plan), "equal": float(step(*labels(8))) - float(
          placed(*labels(8)))}
  placed(*labels(7))
  found["plan"].update(replicas=placed.plan.replicas, whole=str(placed), elsewhere=error_of(
      lambda: placeto.compile_step(step, "v100:2", args=labels(8))))

  # Statistics of a plan's batch normalization are those of the plan, in another process, too.
  def normalized():
    layer = keras.layers.BatchNormalization()
    layer.build([None, 5])
    return tf.function(lambda x: tf.reduce_sum(layer(x * x, training=True) ** 4))

  x = tf.reshape(tf.range(40.0), [8, 5])
  placeto.plan_step(normalized(), "cpu:2", args=[x], replicas=2, max_evaluations=5,
                    batch_norm="synchronized", check_replicas=False).save("synchronized.json")
  placed = placeto.compile_step(normalized(), placement="synchronized.json", verify=False)
  found["plan"]["normalized"] = float(placed(x)) / float(normalized()(x))

  # A step of few examples is slower with replicas, which run if they are asked for and not timed.
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    placed = placeto.compile_step(made(), "cpu:2", args=labels(8), replicas=2, **options)
  warned = [str(each.message) for each in seen]
  found["untimed"] = {
      "times": [placed.plan.before_us, placed.plan.step_time_us],
      "first": str(placed).split("\n")[0],
      "warned": [text for text in warned if "simulated to be slower" in text]}

  # Checkpoints and summaries of the loop go on.
  net = tf.Module()
  net.w = tf.Variable(tf.ones([5, 1]))
  writer = tf.summary.create_file_writer("events")

  @tf.function
  def train(x, rate=0.5, *, flag=True):
    with writer.as_default(step=tf.constant(1, tf.int64)):
      tf.summary.scalar("mean", tf.reduce_mean(x))
    if flag:
      net.w.assign_sub(rate * tf.reduce_mean(x, axis=0)[:, None])
    return {"sum": tf.reduce_sum(net.w), "none": None}

  checkpoint = tf.train.Checkpoint(net=net)
  path = checkpoint.write("checkpoint")
  placed = placeto.compile_step(
      train, "cpu:2", pins=(("AssignSubVariableOp", "/CPU:1"),), max_evaluations=5)
  sums = [float(placed(np.ones([4, 5], np.float32), **more)["sum"])
          for more in ({}, {"rate": 0.0}, {"flag": False}, {"rate": tf.constant(1.0)})]
  checkpoint.read(path).assert_consumed()
  found["loop"] = {"sums": sums, "restored": float(tf.reduce_sum(net.w)),
                   "device": net.w.device[-5:], "text": str(placed)}

  # The faster step is kept, by a clock that decides.
  for name, ratio in (("faster", 0.5), ("slower", 2.0)):
    step = made()
    placed_training.in_turns, real = decided_trial(ratio), placed_training.in_turns
    cluster = placeto.Cluster.parse("cpu:2")
    cluster = dataclasses.replace(cluster, devices=tuple(
        dataclasses.replace(device, efficiency=1e-5) for device in cluster.devices))
    placed = placeto.compile_step(step, cluster, args=labels(512), replicas=2, max_evaluations=50)
    plain = made()
    losses = [(float(placed(*labels(size))), float(plain(*labels(size)))) for size in (512, 512, 7)]
    placed_training.in_turns = real
    found[name] = {"text": str(placed), "how": [each.how for each in placed.steps],
                   "losses": max(abs(a - b) for a, b in losses)}

  with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    weight = tf.Variable(1.0)
    mirrored_model = training_loops.dense(keras, 1)
    mirrored_optimizer = keras.optimizers.SGD(0.1)
  strategy = weight.distribute_strategy

  @tf.function
  def distributed(x):
    strategy.run(lambda: weight.assign_add(tf.reduce_sum(x)))
    return x

  @tf.function
  def called_directly(x):
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(mirrored_model(x))
    training_loops.update(tape, loss, mirrored_optimizer, mirrored_model)
    return loss

  traced = []
  found["unknown"] = [
      error_of(lambda call=call: call(traced.append, "cpu:2", args=[x], noise=3))
      for call in (placeto.compile_step, placeto.plan_step)] + traced
  found["refused"] = [
      error_of(lambda: placeto.compile_step(distributed, "cpu:2", args=[x])),
      error_of(lambda: placeto.compile_step(called_directly, "cpu:2", args=[x])),
      error_of(lambda: placeto.compile_step(keras.Sequential(), "cpu:2")),
      error_of(lambda: placeto.compile_step(made(), "cpu:2", args=[x])),
      error_of(lambda: placeto.compile_step(
          lambda x: tf.reshape(x, [7]), "cpu:2", args=[y])),
      error_of(lambda: placeto.compile_step(
          made(), "cpu:2", args=labels(7), replicas=2, **options))]
  return found


def main(version, modes, names=""):
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  keras = the_keras(version)
  found = {}
  modes = ["placed", "replicas", "replicas-partial"] if modes == "all" else modes.split(",")
  for name in names.split(",") if names else training_loops.LOOPS:
    for mode, _, own in (mode.partition("=") for mode in modes):
      if mode == "cases" or own and name not in own.split("+"):
        continue
      case = found[f"{name} {mode}"] = compared(keras, name, mode)
      print(f"{name} {mode}, Keras {version}: {line(case)}", file=sys.stderr, flush=True)
  if "cases" in modes:
    os.chdir(tempfile.mkdtemp())
    found["cases"] = cases(keras)
  print(json.dumps(found))


if __name__ == "__main__":
  main(*sys.argv[1:])
