"""Run as a program: trains loops as they are and by `compile_step` on two CPU devices, and prints
for each loop and mode what differs as JSON. A process of its own, because devices are fixed when
TensorFlow first runs.

  python tests/placing/train_loops.py KERAS MODES LOOPS
"""

import json
import os
import sys
import traceback

import numpy as np
import tensorflow as tf
import training_loops

import placeto_tf as placeto

DIFFERENCE = 2e-6


def the_keras(version):
  """Keras 2 or Keras 3."""
  if version == "3":
    import keras
    return keras
  import tf_keras
  return tf_keras


def numbers(results):
  return [np.asarray(each, np.float64) for each in tf.nest.flatten(results)]


def train(keras, name, compile_step, partial):
  """Losses and variables after a loop, and its steps."""
  keras.utils.set_random_seed(3)
  steps, run, variables = training_loops.LOOPS[name](keras, partial)
  steps = [compile_step(step) for step in steps]
  losses = run(steps)
  return numbers(losses), numbers([each.numpy() for each in variables()]), steps


def compared(keras, name, mode):
  """One loop trained plain and placed: how far apart they are, or what was refused."""
  partial = mode.endswith("partial")
  options = {"max_evaluations": 30, "verify": False}
  if "replicas" in mode:
    options["replicas"] = 2
  losses, variables, _ = train(keras, name, lambda step: step, partial)
  try:
    placed_losses, placed, steps = train(
        keras, name, lambda step: placeto.compile_step(step, "cpu:2", **options), partial)
  except placeto.PlacetoError as error:
    return {"refused": str(error)}
  except Exception as error:
    if os.environ.get("TRACEBACKS"):
      traceback.print_exc()
    return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:1500]}"}
  if len(variables) != len(placed):
    return {"error": f"{len(placed)} variables instead of {len(variables)}"}
  far = [max((float(np.abs(a - b).max() / max(1.0, np.abs(a).max()))
              for a, b in zip(one, other) if a.size), default=0.0)
         for one, other in ((losses, placed_losses), (variables, placed))]
  plan = steps[0].plan
  return {
      "losses": far[0], "variables": far[1], "replicas": plan.replicas,
      "steps": [[each.how, each.replicas] for each in steps[0].steps],
      "devices": len(set(plan.placement.values())), "verdict": steps[0].verdict,
      "notes": list(plan.result.notes)[:2]}


def main(version, modes, names=""):
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  keras = the_keras(version)
  found = {}
  for name in names.split(",") if names else training_loops.LOOPS:
    for mode in modes.split(","):
      found[f"{name} {mode}"] = compared(keras, name, mode)
      print(f"{name} {mode}", str(found[f"{name} {mode}"])[:600], file=sys.stderr, flush=True)
  print(json.dumps(found))


if __name__ == "__main__":
  main(*sys.argv[1:])
