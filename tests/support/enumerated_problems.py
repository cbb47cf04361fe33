"""Small problems of every kind of cluster, and all of their placements, for bounds and optima."""

import itertools
from typing import Any, Dict

import numpy as np
from random_cases import make_costs

from placeto_tf.clusters import Cluster, Device
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.problem.placement_problem import PlacementProblem

MOST_PLACEMENTS = 20_000


def every_kind_of_problem(seed):
  """A problem of up to 10 ops on up to 4 devices whose groups are its colocated sets.

  Half of the seeds have equal devices, half a host that takes what has no other kernel; some have
  unequal devices, links by pair, little memory, loops, several edges between two ops, control
  edges, ops that take no time, extensions of the simulator, the executor's order.
  """
  rng = np.random.default_rng(seed)
  chance = rng.random

  def times(shape, most):
    return rng.integers(0, rng.integers(1, most + 1) + 1, shape).astype(np.float64)

  gpus, host = int(rng.integers(1, 4)), bool(chance() < 0.5)
  d = gpus + host
  n = int(rng.integers(2, 11))
  kinds = np.zeros(gpus, int) if chance() < 0.5 else rng.integers(0, 2, gpus)
  memory = int(rng.integers(5, 40)) if chance() < 0.3 else 2**30
  devices = [
      Device(f"/GPU:{i}", "GPU", memory, properties={"model": str(kinds[i])})
      for i in range(gpus)]
  if host:
    devices.append(Device("/CPU:0", "CPU", 2**30, host=bool(chance() < 0.7)))
  bandwidth = rng.choice([0.25, 1.0, 2.0, 4.0], (d, d) if chance() < 0.4 else (1, 1))
  latency = times((d, d) if chance() < 0.4 else (1, 1), 5)
  extensions: Dict[str, Any] = {
      "bus_gap_us": float(times(1, 3)[0]),
      "transfers": str(rng.choice(["device", "device", "pair", "unlimited"]))}
  if chance() < 0.35:
    if chance() < 0.5:
      extensions = {"ready_order": "executor",
                    "inline_op_types": ("Inline",), "busy_slowdown": float(chance() < 0.3)}
    for name in ("sender_us_per_transfer", "sender_us_per_byte", "receiver_us_per_transfer",
                 "receiver_us_per_byte"):
      extensions[name] = float(times(1, 2)[0])
    extensions["transfer_per_destination"] = bool(chance() < 0.5)
  cluster = Cluster(
      tuple(devices), np.broadcast_to(bandwidth, (d, d)), np.broadcast_to(latency, (d, d)),
      float(times(1, 3)[0]), **extensions)

  outputs = rng.integers(0, 4, n)
  order, density = rng.permutation(n), rng.uniform(0.5, 3.0)
  edges = []
  for a, b in itertools.combinations(range(n), 2):
    for _ in range(rng.poisson(density * 1.5 / n)):
      producer = int(order[a])
      edges.append((producer, int(rng.integers(CONTROL, outputs[producer])), int(order[b])))
  colocation = np.arange(n, dtype=np.int32)
  for v in range(1, n):
    if chance() < 0.2:
      colocation[v] = colocation[rng.integers(0, v)]
  has_kernel = np.ones((n, 2), dtype=bool)
  for leader in np.unique(colocation):
    if host and chance() < 0.3:
      has_kernel[colocation == leader, int(chance() < 0.8)] = False
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Inline" if chance() < 0.3 else "Op" for _ in range(n)],
      outputs, edges, colocation=colocation, has_kernel=has_kernel,
      executions=np.where(chance(n) < 0.1, 3.0, 1.0),
      fetched_outputs=chance(int(outputs.sum())) < 0.1)
  scale = float(rng.choice([1, 5, 20]))
  costs = make_costs(
      times((n, len(cluster.kind_devices)), 10),
      scale * times(int(outputs.sum()), 4), persistent=rng.integers(0, 8, n))
  sets = np.unique(colocation, return_inverse=True)[1].reshape(-1)
  return PlacementProblem(graph, costs, cluster, Grouping(sets))


def least_us(problem):
  """The least step time of placements that fit: inf if none does, None if there are too many."""
  choices = [np.flatnonzero(row) for row in problem.allowed]
  if np.prod([float(len(row)) for row in choices]) > MOST_PLACEMENTS:
    return None
  found = problem.renewed().evaluate(np.array(list(itertools.product(*choices)), dtype=np.int32))
  return float(np.where(found.fits, found.step_time_us, np.inf).min())
