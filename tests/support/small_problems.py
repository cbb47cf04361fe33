"""Small problems that tests of several folders share: fixtures that conftest files import."""

import numpy as np
import pytest

from placeto_tf.clusters import Cluster, Device
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.problem.host_options import offered_devices
from placeto_tf.problem.placement_problem import PlacementProblem


def _cluster(gpus=2, host=False, *, bandwidth=100.0, latency=0.0, overhead=0.0, speeds=None,
             memory=1e12, bus_gap_us=1.0, **extensions):
  """Devices /GPU:i, and with `host` a /CPU:0 for ops without a GPU kernel."""
  memories = np.broadcast_to(memory, gpus)
  kinds = speeds or [0] * gpus
  devices = [
      Device(f"/GPU:{i}", "GPU", int(memories[i]), properties={"model": str(kinds[i])})
      for i in range(gpus)]
  if host:
    devices.append(Device("/CPU:0", "CPU", int(1e12), host=True))
  d = len(devices)
  return Cluster(tuple(devices), np.full((d, d), bandwidth), np.full((d, d), latency), overhead,
                 bus_gap_us, **extensions)


def _problem(
    compute_us, edges=(), output_bytes=None, *, cluster=None, max_groups=None, method="none",
    host_ops=(), persistent_bytes=None, op_names=None, op_types=None, **fields):
  """A problem of ops 0..N-1 with one output each; edges are (producer, consumer) or with port."""
  compute_us = np.asarray(compute_us, dtype=float)
  n = len(compute_us)
  cluster = cluster or _cluster()
  has_kernel = np.ones((n, 2), dtype=bool)
  has_kernel[list(host_ops), 1] = False
  rows = [edge if len(edge) == 3 else (edge[0], 0, edge[1]) for edge in edges]
  graph = ComputationGraph.from_edges(
      op_names or [f"op{i}" for i in range(n)], op_types or ["Op"] * n, [1] * n, rows,
      has_kernel=has_kernel, **fields)
  if compute_us.ndim == 1:
    compute_us = np.repeat(compute_us[:, None], len(cluster.kind_devices), axis=1)
  costs = OpCosts(
      compute_us, np.zeros(n) if output_bytes is None else np.asarray(output_bytes, dtype=float),
      np.zeros(n) if persistent_bytes is None else np.asarray(persistent_bytes, dtype=float),
      np.zeros(n))
  allowed = offered_devices(graph, cluster, costs)
  grouping = group_ops(graph, costs, allowed, max_groups=max_groups or n, method=method)
  return PlacementProblem(graph, costs, cluster, grouping)


def _random_problem(seed, **fields):
  """A random problem with colocation, a host in half of them, unequal devices in some."""
  rng = np.random.default_rng(seed)
  n, gpus = int(rng.integers(1, 25)), int(rng.integers(1, 4))
  host = bool(rng.random() < 0.5)
  edges = [(u, v) for v in range(1, n) for u in range(v) if rng.random() < 2 / n]
  colocation = np.arange(n, dtype=np.int32)
  for v in range(1, n):
    if rng.random() < 0.15:
      colocation[v] = colocation[rng.integers(0, v)]
  speeds = [int(rng.random() < 0.3) for _ in range(gpus)]
  cluster = _cluster(
      gpus, host, bandwidth=float(rng.choice([10.0, 1000.0])), overhead=float(rng.choice([0, 3])),
      speeds=speeds, memory=float(rng.choice([1e12, 3e3])))
  compute_us = rng.integers(0, 20, (n, len(cluster.kind_devices))).astype(float)
  host_ops = [i for i in range(n) if host and rng.random() < 0.15]
  return _problem(
      compute_us, edges, rng.integers(0, 1000, n), cluster=cluster, host_ops=host_ops,
      persistent_bytes=rng.integers(0, 500, n), colocation=colocation, max_groups=8,
      method="heavy_edge", **fields)


@pytest.fixture(scope="session")
def make_cluster():
  return _cluster


@pytest.fixture(scope="session")
def make_problem():
  return _problem


@pytest.fixture(scope="session")
def random_problem():
  return _random_problem


@pytest.fixture
def two_chains():
  """Two chains of ten ops of 1 ms, of different types, that exchange nothing: one each is best."""
  names = [f"{chain}{i}" for chain in "ab" for i in range(10)]
  edges = [(i, 0, i + 1) for i in range(19) if i != 9]
  graph = ComputationGraph.from_edges(names, ["A"] * 10 + ["B"] * 10, [1] * 20, edges)
  cluster = Cluster.parse("k80:2")
  costs = OpCosts(
      np.full((20, len(cluster.kind_devices)), 1000.0), np.full(20, 2e6), np.zeros(20),
      np.zeros(20))
  return PlacementProblem(graph, costs, cluster, Grouping(np.arange(20)))


@pytest.fixture
def sixty_ops(make_problem, make_cluster):
  """Makes the same problem of sixty ops on three GPUs and a host each time."""
  rng = np.random.default_rng(0)
  edges = [(u, v) for v in range(1, 60) for u in range(max(0, v - 9), v) if rng.random() < 0.2]
  compute_us, sizes = rng.integers(1, 50, 60).astype(float), rng.integers(0, 20_000, 60)

  return lambda: make_problem(
      compute_us, edges, sizes, cluster=make_cluster(3, True), max_groups=20, method="heavy_edge")
