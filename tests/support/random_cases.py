"""Random graphs, costs, clusters and placements for the simulator's tests.

Small integers as costs and sizes make equal times frequent, which is where rule 4 of
docs/simulator.md decides.
"""

import numpy as np

from placeto_tf.clusters import Cluster, Device
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph


def make_cluster(num_devices, *, bandwidth=1.0, latency=0.0, overhead=0.0, memory=2**30, kinds=1,
                 hosts=1, **extensions):
  """D devices, the first `kinds` of them of different kinds; scalars or [D, D] links."""
  d = num_devices
  devices = tuple(
      Device(f"/job:worker/task:{i % hosts}/device:GPU:{i}" if hosts > 1 else f"/GPU:{i}", "GPU",
             memory, properties={"model": str(i % kinds)}) for i in range(d))
  return Cluster(
      devices, np.broadcast_to(np.asarray(bandwidth, np.float64), (d, d)).copy(),
      np.broadcast_to(np.asarray(latency, np.float64), (d, d)).copy(), overhead, **extensions)


def make_costs(compute, output_bytes, *, persistent=None, temporary=None):
  """Costs from lists; compute is [N] or [N, K]."""
  compute = np.asarray(compute, dtype=np.float64)
  compute = compute[:, None] if compute.ndim == 1 else compute
  zeros = np.zeros(len(compute))
  return OpCosts(
      compute, np.asarray(output_bytes, dtype=np.float64),
      zeros if persistent is None else np.asarray(persistent, dtype=np.float64),
      zeros if temporary is None else np.asarray(temporary, dtype=np.float64))


def random_case(seed, *, max_ops=14, max_devices=4, floats=False, **extensions):
  """(graph, costs, cluster, placements [B, N]) from a seed."""
  random = np.random.default_rng(seed)
  n = int(random.integers(1, max_ops + 1))
  d = int(random.integers(1, max_devices + 1))
  num_outputs = random.integers(0, 3, n)
  order = random.permutation(n)  # so that the file's order is not the topological one
  edges = []
  density = random.uniform(0.5, 3.0)
  for a in range(n):
    for _ in range(random.poisson(density)):
      b = int(random.integers(0, n))
      if b > a:
        producer = int(order[a])
        edges.append((producer, int(random.integers(CONTROL, num_outputs[producer])),
                      int(order[b])))
  total = int(num_outputs.sum())
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["X"] * n, num_outputs, edges,
      fetched_outputs=random.random(total) < 0.1)
  kinds = int(random.integers(1, d + 1))

  def times(shape):
    if floats:
      return np.where(random.random(shape) < 0.2, 0.0, random.exponential(1.0, shape))
    return random.integers(0, int(random.integers(2, 5)), shape).astype(np.float64)

  costs = make_costs(
      times((n, kinds)), random.integers(0, 4, total), persistent=random.integers(0, 3, n),
      temporary=random.integers(0, 3, n))
  bandwidth = (
      random.exponential(1.0, (d, d)) + 0.1 if floats
      else random.choice([1.0, 2.0, 4.0], (d, d)))
  launches = np.random.default_rng([seed, 2])
  if launches.random() < 0.5:
    extensions = {"launch_us": float(launches.integers(0, 4)),
                  "overlapped_launches": bool(launches.random() < 0.5),
                  "hosts": int(launches.integers(1, 3)), **extensions}
  cluster = make_cluster(
      d, bandwidth=bandwidth, latency=times((d, d)), overhead=float(times(1)[0]),
      bus_gap_us=float(times(1)[0]), memory=int(random.integers(1, 20)), kinds=kinds, **extensions)
  assert cluster.device_kinds.max() + 1 == kinds
  return graph, costs, cluster, random.integers(0, d, (3, n)).astype(np.int32)


def random_extensions(seed):
  """Cluster fields, each on or off at random."""
  random = np.random.default_rng([seed, 1])

  def maybe(value, default):
    return value if random.random() < 0.4 else default

  return dict(
      transfers=maybe(str(random.choice(["pair", "unlimited"])), "device"),
      transfer_per_destination=maybe(True, False),
      sender_us_per_transfer=maybe(float(random.integers(1, 3)), 0.0),
      sender_us_per_byte=maybe(1.0, 0.0),
      receiver_us_per_transfer=maybe(float(random.integers(1, 3)), 0.0),
      receiver_us_per_byte=maybe(1.0, 0.0))
