"""Applies the placement of one trace of a step to another trace, such as for a partial last batch.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, Tuple

import numpy as np

from placeto_tf.clusters import device_names
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.graphs.captures import resource_captures
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.placements import Placement, coverage

_NUMBER = re.compile(r"_?\d+")


def placed_alike(
    placement: Placement, graph: ComputationGraph, function: Any, cluster: Cluster, *,
    keep_variables: bool = True,
) -> Tuple[Placement, float]:
  """Returns the placement of another trace of the same step.

  An op gets the device of the op with the same name. If names in the traces differ only in their
  numbers, it gets the device of the op at the same index. A variable, and the ops that use its
  handle, get the variable's present device. All other ops get the device of a producer or consumer.

  Args:
    placement: of the first trace.
    graph: N ops of the second trace.
    function: the ConcreteFunction that `graph` was read from.
    cluster: the D devices of the placement.
    keep_variables: whether variables keep their present devices instead of the placement's.

  Returns:
    The placement, and the share of ops that were found by name.
  """
  placement = _renamed(placement, graph)
  column = device_names.match(placement.devices, cluster.device_names)
  # [N] device by name, -1 if the other trace has no op of that name.
  by_name = np.array([
      column[placement[op]] if op in placement else -1 for op in graph.op_names], dtype=np.int64)
  # Colocation set -> device: variables first, then names, then neighbours.
  of_set: Dict[int, int] = {}
  for capture in resource_captures(function):
    if not (keep_variables or capture.fixed):
      continue
    device = device_names.find_device(cluster.device_names, capture.device)
    if device is not None and capture.op in graph.op_index:
      of_set[int(graph.colocation[graph.op_index[capture.op]])] = device
  # The first op of each set that was found by name decides.
  for op in np.flatnonzero(by_name >= 0).tolist():
    of_set.setdefault(int(graph.colocation[op]), int(by_name[op]))
  _spread(graph, of_set)
  allowed = allowed_devices(graph, cluster)
  # Sets that are not connected to a placed op go to the first device.
  indices = np.array([of_set.get(label, 0) for label in graph.colocation.tolist()], np.int32)
  # If the device has no kernel for the op, take the first device that has one.
  wrong = ~allowed[np.arange(graph.num_ops), indices]
  indices[wrong] = allowed[wrong].argmax(axis=1)
  return Placement.from_indices(graph, cluster, indices), float((by_name >= 0).mean())


def _renamed(placement: Placement, graph: ComputationGraph) -> Placement:
  """Returns the placement with the names of another graph whose names differ only in numbers.

  Keras counts layers over the whole process (dense_1 of one model is dense_4 of the next), and
  renumbers optimizers when their variables exist.
  """
  ops = coverage.file_op_names(graph)
  # Op by op: both are in the order of their files.
  pairs = list(zip(placement, ops))
  # If names without numbers are equal, op i of one trace is op i of the other.
  if len(ops) != len(placement) or any(_NUMBER.sub("", a) != _NUMBER.sub("", b) for a, b in pairs):
    return placement
  return dataclasses.replace(placement, op_devices={new: placement[old] for old, new in pairs})


def _spread(graph: ComputationGraph, of_set: Dict[int, int]) -> None:
  """Gives sets without a device the device of a producer, or else of a consumer."""
  sets, data = graph.colocation, graph.edge_ports != CONTROL
  producers, consumers = graph.edge_producers[data], graph.edge_consumers[data]
  order = np.argsort(graph.topological_rank[producers], kind="stable")
  # [(set of the producer, set of the consumer)] in topological order.
  pairs = list(zip(sets[producers[order]].tolist(), sets[consumers[order]].tolist()))
  # Forwards along data edges, then backwards for sets without a placed producer.
  for one, other in (*pairs, *((consumer, producer) for producer, consumer in reversed(pairs))):
    if one in of_set:
      of_set.setdefault(other, of_set[one])
