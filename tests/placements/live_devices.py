"""Run as a program: places live functions on two CPU devices by `place()` and prints what became of
the promise as JSON. A process of its own, because devices are fixed when TensorFlow first runs."""

import json
import sys

import numpy as np
import tensorflow as tf

import placeto_tf as placeto

OPTIONS = dict(method="metis", max_evaluations=20, seed=0)


class Branches(tf.Module):
  """Four dense branches with momentum, as an optimizer keeps it."""

  def __init__(self, width=512):
    super().__init__()
    shape = [width, width]
    self.layers = [
        [tf.Variable(tf.random.stateless_normal(shape, [i, j]) / 10, name=f"branch_{i}_{j}")
         for j in range(3)] for i in range(4)]
    self.slots = [
        [tf.Variable(tf.zeros(shape), name=f"slot_{i}_{j}") for j in range(3)] for i in range(4)]

  @tf.function
  def step(self, x):
    with tf.GradientTape() as tape:
      outputs = []
      for layers in self.layers:
        y = x
        for layer in layers:
          y = tf.tanh(y @ layer)
        outputs.append(y)
      loss = tf.reduce_mean(tf.add_n(outputs)**2)
    flat, slots = tf.nest.flatten(self.layers), tf.nest.flatten(self.slots)
    for variable, slot, gradient in zip(flat, slots, tape.gradient(loss, flat)):
      slot.assign(0.9 * slot + gradient)
      variable.assign_sub(0.1 * slot)
    return loss


def step_us(graph):
  """The step of a placed function, read anew and simulated where its ops are."""
  devices = ["/CPU:0" if "CPU:0" in device else "/CPU:1" for device in graph.assigned_devices]
  indices = np.array([int(device[-1]) for device in devices], np.int32)
  return placeto.simulate(graph, "cpu:2", indices).step_time_us


def promise():
  model, reference = Branches(), Branches()
  x = tf.random.stateless_normal([64, 512], [5, 6])
  concrete = model.step.get_concrete_function(x)
  result = placeto.place(concrete, "cpu:2", **OPTIONS)
  applied = result.apply(concrete)
  expected = [float(reference.step(x)) for _ in range(5)]
  found = [float(applied(x)) for _ in range(5)]
  return {
      "promised": result.step_time_us, "single": result.baselines["single"].step_time_us,
      "simulated": applied.step_time_us, "before": applied.before_us, "kept": applied.kept,
      "read_again": step_us(placeto.load_graph(applied.function)),
      "equal": expected == found, "moved": len(applied.placed.moved), "report": str(applied),
      "slots_moved": sum("CPU:1" in slot.device for slot in tf.nest.flatten(model.slots))}


def fixed():
  """Half of the variables are read by a pipeline: place() plans with them."""
  model = Branches()
  pipeline = tf.data.Dataset.range(1).map(
      lambda _: tf.add_n([layer[0][0] for layers in model.layers[:2] for layer in layers]))
  concrete = model.step.get_concrete_function(tf.TensorSpec([64, 512]))
  result = placeto.place(concrete, "cpu:2", **OPTIONS)
  applied = result.apply(concrete)
  held = [layer.device[-5:] for layers in model.layers[:2] for layer in layers]
  return {"devices": held, "notes": list(result.notes), "promised": result.step_time_us,
          "simulated": applied.step_time_us, "rows": len(list(pipeline)),
          "moved": len(applied.placed.moved)}


def kept():
  """Variables that their user has put on a device, and existing_devices="keep"."""
  with tf.device("CPU:1"):
    there = tf.Variable(tf.ones([8, 8]), name="there")
  here = tf.Variable(tf.ones([8, 8]), name="here")
  concrete = tf.function(lambda x: x @ here @ there).get_concrete_function(tf.TensorSpec([2, 8]))
  result = placeto.place(concrete, "cpu:2", existing_devices="keep", **OPTIONS)
  result.apply(concrete)
  return [there.device[-5:], result.placement["there"] if "there" in result.placement else "",
          sorted(set(result.graph.assigned_devices))[-1][-5:]]


def main():
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  tf.config.set_soft_device_placement(False)
  json.dump({"promise": promise(), "fixed": fixed(), "kept": kept()}, sys.stdout)


if __name__ == "__main__":
  main()
