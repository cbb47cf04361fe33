"""Run as a program: places functions and SavedModels on two CPU devices, by `place()` too, and
prints what TensorFlow made of that as JSON. A process of its own, because devices are fixed when
TensorFlow first runs."""

import json
import os
import sys
import tempfile
import warnings

import numpy as np
import tensorflow as tf

import placeto_tf as placeto
from device_traces import compared, same, traced
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement, check, load_placed, place_function, write_placed
from subprograms import error_of

v1 = tf.compat.v1
CLUSTER = Cluster.parse("cpu:2")
PLACING = dict(method="metis", max_evaluations=20, seed=0)


class Model(tf.Module):
  """Nested functions, a loop with a branch, gradients and updates."""

  def __init__(self):
    self.weights = tf.Variable(tf.random.stateless_normal([4, 4], [1, 2]), name="weights")
    self.bias = tf.Variable(tf.zeros([4]), name="bias")
    self.count = tf.Variable(0.0, name="count")

  @tf.function
  def layer(self, x):
    return tf.tanh(x @ self.weights + self.bias)

  @tf.function
  def step(self, x, more):
    with tf.GradientTape() as tape:
      for _ in tf.range(3):
        x = self.layer(x)
        if tf.reduce_sum(x) > 0:
          x = x * 2
      loss = tf.reduce_sum(x**2)
    gradients = tape.gradient(loss, [self.weights, self.bias])
    self.weights.assign_sub(0.1 * gradients[0])
    self.bias.assign_sub(0.1 * gradients[1])
    self.count.assign_add(1.0)
    return {"x": x, "count": self.count.read_value(), "losses": [loss, more["a"] + loss]}

  @tf.function(input_signature=[tf.TensorSpec([None, 4])])
  def serve(self, x):
    result = self.step(x, {"a": 1.0})
    return {"y": result["x"], "count": result["count"], "same": x, "loss": result["losses"][0]}


def random_placement(graph, seed):
  indices = np.random.default_rng(seed).integers(0, 2, graph.num_ops, np.int32)
  return Placement.from_indices(graph, CLUSTER, indices[graph.colocation])


def saved_model(seed):
  model = Model()
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model")
    tf.saved_model.save(model, path, signatures=model.serve.get_concrete_function())
    graph = load_graph(path, batch_size=2)
    placement = random_placement(graph, seed)
    write_placed(graph, placement, folder)
    original = tf.saved_model.load(path).signatures["serving_default"]
    loaded = load_placed(folder)
    placed = loaded.signatures["serving_default"]
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    results, devices = traced(placed, tf.constant(x))
    equal = [same(original(tf.constant(x)), results)]
    for k in range(3):
      equal.append(same(original(tf.constant(x + k)), placed(tf.constant(x + k))))
  variables = {v.name.partition(":")[0]: v.device.rpartition("/device:")[2]
               for v in placed.variables}
  wanted = {op: placement[op][1:] for op, kind in zip(graph.op_names, graph.op_types)
            if kind == "VarHandleOp"}
  return {**compared(graph, placement, devices), "check": check(graph, placement, CLUSTER),
          "equal": equal, "variables": variables, "wanted": wanted}


def of_tf1(seed):
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model")
    with tf.Graph().as_default(), v1.Session() as session:
      x = v1.placeholder(tf.float32, [2, 4], name="x")
      y = x @ v1.get_variable("one", [4, 3]) @ v1.get_variable("two", [3, 3])
      session.run(v1.global_variables_initializer())
      v1.saved_model.simple_save(session, path, {"x": x}, {"y": y})
    graph = load_graph(path)
    placement = random_placement(graph, seed)
    write_placed(graph, placement, folder)
    loaded, x = load_placed(folder), tf.constant([[1.0, 2.0, 3.0, 4.0]] * 2)
    equal = same(*(each.signatures["serving_default"](x=x) for each in (
        loaded, tf.saved_model.load(path))))
  return {"check": [] if equal else ["unequal"], "variables": {
      v.name.partition(":")[0]: v.device.rpartition("/device:")[2] for v in loaded.variables},
      "wanted": {op: placement[op][1:] for op in ("one", "two")}}


def function(seed, **options):
  model, reference = Model(), Model()
  specs = (tf.TensorSpec([2, 4]), {"a": tf.TensorSpec([])})
  concrete = model.step.get_concrete_function(*specs)
  graph = load_graph(concrete)
  placement = random_placement(graph, seed)
  placed = place_function(placement, concrete)
  x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
  args = (tf.constant(x), {"a": tf.constant(3.0)})
  expected = reference.step.get_concrete_function(*specs)
  results, devices = traced(placed.function, *args)
  equal = [same(expected(*args), results) and sorted(results) == ["count", "losses", "x"]]
  equal += [same(expected(*args), placed(*args)) for _ in range(3)]
  variables = [model.weights, model.bias, model.count]
  count = float(model.count)
  # The original, traced again by others, and the model's own function go on with the same values.
  again = tf.function(lambda x: concrete(x, {"a": tf.constant(3.0)}))
  equal_again = [same(expected(*args), again(args[0]))]
  read_again = load_graph(placed.function)
  return {**compared(graph, placement, devices), "equal": equal, "report": str(placed),
          "again": equal_again, "same_values": same(
              [reference.weights, reference.bias, reference.count], variables),
          "read_again": read_again.fingerprint == graph.fingerprint and list(
              read_again.op_names) == list(graph.op_names),
          "devices_again": [device.rpartition("/device:")[2] for device in
                            read_again.assigned_devices],
          "wanted_devices": [placement[op][1:] for op in graph.op_names],
          "variables": {v.name.partition(":")[0]: v.device.rpartition("/device:")[2]
                        for v in variables},
          "moved": [v.name for v in placed.moved],
          "wanted": {v.name: v.wanted.rpartition("/device:")[2] for v in (
              *placed.in_place, *placed.moved)},
          "model_count": count}


def others_follow():
  """Functions, checkpoints and a GradientTape that used a variable before it moved."""
  variable = tf.Variable([1.0, 2.0], name="shared")
  reader = tf.function(lambda: variable + 0.0)
  reader()
  double = tf.function(lambda: variable.assign(variable * 2.0))
  concrete = double.get_concrete_function()
  place_function(all_on(concrete, 1), concrete).function()
  values = {"reader": reader().numpy().tolist(), "variable": variable.numpy().tolist()}
  double()
  concrete()
  values["doubled"] = reader().numpy().tolist()
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(variable**2)
  values["gradient"] = tape.gradient(loss, variable).numpy().tolist()
  with tempfile.TemporaryDirectory() as folder:
    path = tf.train.Checkpoint(v=variable).save(os.path.join(folder, "ckpt"))
    variable.assign([0.0, 0.0])
    tf.train.Checkpoint(v=variable).restore(path)
  values["restored"] = reader().numpy().tolist()
  return {**values, "device": variable.device.rpartition("/device:")[2]}


def all_on(concrete, device):
  """A placement of everything that can move on one device."""
  graph = load_graph(concrete)
  wanted = np.full(graph.num_ops, device, np.int32)
  allowed = allowed_devices(graph, CLUSTER)
  return Placement.from_indices(
      graph, CLUSTER, np.where(allowed[:, device], wanted, 1 - device).astype(np.int32))


def fixed():
  """A lookup table, and a variable that a pipeline reads."""
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1.0, 2.0])), -1.0)
  offset, scale = tf.Variable(3.0, name="offset"), tf.Variable(2.0, name="scale")
  dataset = tf.data.Dataset.range(2).map(lambda i: tf.cast(i, tf.float32) + offset)

  @tf.function
  def step(keys):
    return table.lookup(keys) * scale + offset

  concrete = step.get_concrete_function(tf.TensorSpec([2], tf.string))
  graph = load_graph(concrete)
  placed = place_function(all_on(concrete, 1), concrete)
  forced = Placement({op: "/CPU:1" for op in graph.op_names}, CLUSTER.device_names)
  planned = placeto.place(concrete, "cpu:2", **PLACING)
  return {
      "planned": sorted({planned.placement[name] for name in graph.source.fixed_devices}),
      "said": list(planned.notes),
      "notes": list(graph.notes), "fixed": sorted(graph.source.fixed_devices.values()),
      "moved": [v.name for v in placed.moved],
      "result": placed(tf.constant(["b", "c"])).numpy().tolist(),
      "piped": [float(value) for value in dataset],
      "error": error_of(lambda: place_function(forced, concrete))}


def embedding():
  """An op that TensorFlow colocates with the placeholder of a captured variable."""
  weights = tf.Variable(tf.random.stateless_normal([10, 4], [1, 2]), name="weights")
  concrete = tf.function(
      lambda ids: tf.nn.embedding_lookup(weights, ids)).get_concrete_function(
          tf.TensorSpec([3], tf.int32))
  ids = tf.constant([1, 5, 1])
  expected = concrete(ids)
  return [same(expected, place_function(all_on(concrete, device), concrete)(ids))
          for device in (0, 1)]


def held():
  """A handle that someone keeps outside of functions."""
  variable = tf.Variable(1.0, name="kept")
  handle = variable.handle
  concrete = tf.function(lambda: variable * 2.0).get_concrete_function()
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    place_function(all_on(concrete, 1), concrete)
  del handle
  return [str(warning.message) for warning in seen]


def kept():
  """Variables that their user has put on a device, and existing_devices="keep"."""
  with tf.device("CPU:1"):
    there = tf.Variable(tf.ones([8, 8]), name="there")
  here = tf.Variable(tf.ones([8, 8]), name="here")
  concrete = tf.function(lambda x: x @ here @ there).get_concrete_function(tf.TensorSpec([2, 8]))
  result = placeto.place(concrete, "cpu:2", existing_devices="keep", **PLACING)
  result.apply(concrete)
  return [there.device[-5:], result.placement["there"] if "there" in result.placement else "",
          sorted(set(result.graph.assigned_devices))[-1][-5:]]


def main():
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  # Grappler would fold, reorder and move ops.
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  found = {"saved_model": saved_model(0), "of_tf1": of_tf1(1)}
  tf.config.set_soft_device_placement(False)
  found["kept"] = kept()
  found["moved"] = function(6)
  found["others"] = others_follow()
  found["fixed"] = fixed()
  found["embedding"] = embedding()
  found["held"] = held()
  json.dump(found, sys.stdout)


if __name__ == "__main__":
  main()
