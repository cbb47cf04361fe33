"""Run as a program: trains models plain and placed at random on several CPU devices and prints what
differed as JSON. Arguments: the Keras ("2" or "3"), the number of devices, names of `keras_zoo`."""

import json
import sys
import time

import numpy as np
import tensorflow as tf

import keras_zoo
from device_traces import compared, same, traced
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices, own_devices
from placeto_tf.costs import estimate_costs
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.simulation import Simulator
from subprograms import the_keras

STEPS = 5


def random_placement(graph, cluster, seed):
  """[N], equal inside each colocation set, what is fixed where it is."""
  rng = np.random.default_rng(seed)
  indices = rng.integers(0, cluster.num_devices, graph.num_ops)[graph.colocation]
  allowed = allowed_devices(graph, cluster)
  fixed = ~allowed[np.arange(graph.num_ops), indices]
  indices[fixed] = allowed[fixed].argmax(axis=1)
  return indices.astype(np.int32)


def prove(keras, name, cluster):
  started = time.monotonic()
  plain, other = keras_zoo.build(keras, name), keras_zoo.build(keras, name)
  graph = load_graph(other.function)
  costs = estimate_costs(graph, cluster)
  indices = random_placement(graph, cluster, seed=len(name))
  placement = Placement.from_indices(graph, cluster, indices)
  promised_us = Simulator(graph, costs, cluster).simulate(indices).step_time_us
  placed = placement.apply(other.function)
  again = load_graph(placed)
  applied_us = Simulator(again, estimate_costs(again, cluster), cluster).simulate(
      own_devices(again, cluster).astype(np.int32)).step_time_us
  result, devices = traced(placed, *other.batch)
  results = [result] + [placed(*other.batch) for _ in range(STEPS - 1)]
  expected = [plain.function(*plain.batch) for _ in range(STEPS)]
  handles = {device.rpartition("/device:")[2] for op, device in zip(
      again.op_names, again.assigned_devices) if "CPU" in device}
  variables = [variable.value if hasattr(variable, "path") else variable
               for variable in other.variables()]
  wanted = {}
  for op, op_type in zip(graph.op_names, graph.op_types):
    if op_type == "VarHandleOp":
      wanted[op] = placement[op][1:]
  found = {}
  names = getattr(placed, "_placeto_names", {})
  for outer, inner in placed.graph.captures:
    found[names.get(inner.op.name, inner.op.name)] = outer.device.rpartition("/device:")[2]
  report = compared(graph, placement, devices)
  return {
      "ops": report["ops"], "elsewhere": report["elsewhere"][:5], "unseen": report["unseen"][:5],
      "devices": len(handles), "promised": promised_us, "applied": applied_us,
      "equal_results": same(expected, results),
      "equal_variables": same(plain.variables(), other.variables()),
      "trained": not same(expected[0], expected[-1]), "variables": len(variables),
      "variables_elsewhere": [op for op, where in wanted.items() if found.get(op) != where][:5],
      "on_devices": len({variable.device for variable in variables}),
      "seconds": time.monotonic() - started}


def main(version, count, *names):
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * int(count))
  # Grappler would fold, reorder and move ops.
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  tf.config.set_soft_device_placement(False)
  keras, cluster = the_keras(version), Cluster.parse(f"cpu:{count}")
  report = {"keras": keras.__version__}
  for name in names:
    report[name] = prove(keras, name, cluster)
    print(name, round(report[name]["seconds"]), file=sys.stderr, flush=True)
  print(json.dumps(report))


if __name__ == "__main__":
  main(*sys.argv[1:])
