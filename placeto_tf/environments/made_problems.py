"""Random problems of the kinds that other tools place, made of arrays: `made:KIND[index]`.

Kind and index decide the samples of a problem and its cluster:

  layers     random layered graphs of 10 to 3,000 ops, one in 20 of up to 50,000, on 2 to 8 devices
             of one or two speeds
  products   products of blocks of matrices, in chains and in layers, on 2 to 8 equal devices whose
             transfers take up to some times as long as an op
  tasks      10 to 60 tasks on 4 to 24 devices of different speeds, delays and links by pair, each
             task allowed on a share of the devices
  pipelines  chains of layers with branches, of 50 to 800 ops, on accelerators with little memory
             and slow CPUs with enough memory for all ops
  packed     such chains on accelerators that hold 1.05 to 1.5 times the model; both ends of a
             transfer compute while it is packed and unpacked, as `calibrate` measures it

Transfers queue on one bus per device in half of the problems, on a link per pair of devices in a
quarter, and not at all in a quarter.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import re
import zlib
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.clusters.device import Device
from placeto_tf.costs import OpCosts
from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import ComputationGraph
from placeto_tf.problem.placement_problem import PlacementProblem

PREFIX = "made:"
_SPEC = re.compile(PREFIX + r"(\w+)\[(\d+)(?::(\d+))?\]\Z")
_PLENTY = 1e12  # bytes of memory that never run out
Edges = List[Tuple[int, int]]


class _Sampled(NamedTuple):
  """A graph and its cluster: work and bytes of N ops, speeds and memory of D devices."""

  edges: Edges
  work_us: np.ndarray  # [N] on a device of speed 1
  output_bytes: np.ndarray  # [N]
  speed: np.ndarray  # [D]
  bandwidth: Union[float, np.ndarray]  # [D, D] bytes/us, or the same for all pairs
  latency_us: Union[float, np.ndarray] = 0.0  # [D, D], or the same for all pairs
  persistent_bytes: Optional[np.ndarray] = None  # [N]
  memory_bytes: Optional[np.ndarray] = None  # [D]
  allowed: Optional[np.ndarray] = None  # [N, D]
  packed: bool = False  # whether the bandwidth is that of packing and of unpacking


def expand(specs: Sequence[str]) -> List[str]:
  """Returns the specs with ranges, such as `made:tasks[0:8]`, replaced by their members."""
  found: List[str] = []
  for spec in specs:
    match = _SPEC.match(spec)
    if match and match.group(3):
      found += [f"{PREFIX}{match.group(1)}[{i}]"
                for i in range(int(match.group(2)), int(match.group(3)))]
    else:
      found.append(spec)
  return found


def make(spec: str, *, max_groups: int = 128) -> PlacementProblem:
  """Makes the problem of a spec; the same spec always gives the same problem.

  Args:
    spec: `made:KIND[index]`.
    max_groups: the most groups of its ops.

  Returns:
    The problem, with its costs, its cluster and the devices that each op may use.

  Raises:
    PlacetoError: there is no such kind, or the text is no spec.
  """
  match = _SPEC.match(spec)
  if not match or match.group(1) not in _KINDS or match.group(3):
    raise PlacetoError(
        f"problem {spec!r} was not understood; expected {PREFIX}KIND[index] with one of "
        f"{', '.join(_KINDS)}")
  kind = match.group(1)
  # crc32, unlike hash(), is the same in every process.
  rng = np.random.default_rng([zlib.crc32(kind.encode()), int(match.group(2))])
  sampled = _KINDS[kind](rng)
  n, d = len(sampled.work_us), len(sampled.speed)
  memory = np.full(d, _PLENTY) if sampled.memory_bytes is None else sampled.memory_bytes
  bandwidth, latency_us = (  # [D, D] both
      np.broadcast_to(each, (d, d)).copy() for each in (sampled.bandwidth, sampled.latency_us))
  cluster = Cluster(
      tuple(Device(f"/GPU:{i}", "GPU", int(memory[i]), properties={"model": f"{speed:.4f}"})
            for i, speed in enumerate(sampled.speed.tolist())),
      bandwidth * (1e3 if sampled.packed else 1), latency_us,
      sender_us_per_byte=float(sampled.packed / bandwidth[0, 0]),
      receiver_us_per_byte=float(sampled.packed / bandwidth[0, 0]),
      transfers=str(rng.choice(["device", "device", "pair", "unlimited"])))
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Op"] * n, [1] * n,
      [(producer, 0, consumer) for producer, consumer in sampled.edges])
  first = np.unique(cluster.device_kinds, return_index=True)[1]  # a device of each kind
  none = np.zeros(n)
  costs = OpCosts(
      # [N, kinds of devices] us.
      sampled.work_us[:, None] / sampled.speed[first], sampled.output_bytes,
      none if sampled.persistent_bytes is None else sampled.persistent_bytes, none)
  return PlacementProblem.build(
      graph, cluster, costs=costs, max_groups=max_groups, allowed_ops=sampled.allowed)


def _between(rng: np.random.Generator, low: float, high: float) -> float:
  """Samples a number whose logarithm is uniform."""
  return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _bandwidth(
    rng: np.random.Generator, work_us: np.ndarray, output_bytes: np.ndarray, low: float,
    high: float) -> float:
  """Samples a bandwidth at which the mean transfer takes `low` to `high` times the mean op."""
  return float(output_bytes.mean()) / (float(work_us.mean()) * _between(rng, low, high))


def _layers(rng: np.random.Generator) -> _Sampled:
  n = int(_between(rng, 10, 3000) if rng.random() < 0.95 else _between(rng, 3000, 50_000))
  width = int(_between(rng, 2, max(3, n / 5)))
  # Op i is in layer i // width; it reads 1 to 3 ops of the 1 to 3 previous layers.
  layer = np.arange(n) // width
  edges = [
      (int(producer), i) for i in range(width, n)
      for producer in set(rng.integers(
          max(0, (layer[i] - rng.integers(1, 4)) * width), layer[i] * width,
          size=rng.integers(1, 4)).tolist())]
  work_us, output_bytes = rng.lognormal(5, rng.uniform(0.2, 1.5), n), rng.lognormal(12, 1, n)
  d = int(rng.integers(2, 9))
  # The first few devices, perhaps none, are 1 to 4 times as fast.
  speed = np.where(np.arange(d) < rng.integers(0, d), _between(rng, 1, 4), 1.0)
  return _Sampled(
      edges, work_us, output_bytes, speed, _bandwidth(rng, work_us, output_bytes, 0.05, 5),
      rng.choice([0.0, 10.0]))


def _products(rng: np.random.Generator) -> _Sampled:
  """Returns C = A B in s x s blocks: s^3 products, each block of C a sum of s of them."""
  s, layers = int(rng.integers(2, 5)), int(rng.integers(1, 7))
  wide = rng.random() < 0.5  # True: layers have several chains side by side
  work: List[float] = []
  edges: Edges = []

  def op(cost: float, inputs: Sequence[int]) -> int:
    """Adds an op to the graph.

    Args:
      cost: the work of the new op, in units of one product of blocks.
      inputs: numbers of the ops that the new op reads.
    """
    edges.extend((each, len(work)) for each in set(inputs))
    work.append(cost)
    return len(work) - 1

  chains = int(rng.integers(2, 4)) if wide else 1
  add = rng.uniform(0.05, 0.4)
  for _ in range(chains):
    # [s, s] blocks of A, then of the product so far.
    left = [[op(add, ()) for _ in range(s)] for _ in range(s)]
    for _ in range(layers):
      right = [[op(add, ()) for _ in range(s)] for _ in range(s)]
      # [s, s, s]: products[i][j][k] = left[i][k] right[k][j].
      products = [[[op(1.0, (left[i][k], right[k][j])) for k in range(s)] for j in range(s)]
                  for i in range(s)]
      # Block (i, j) of the product: the sum over k, which the next layer multiplies.
      left = [[op(add, products[i][j]) for j in range(s)] for i in range(s)]
  work_us = 100 * np.array(work)
  output_bytes = np.full(len(work), 1e6)
  d = int(rng.choice([2, 4, 4, 8, 8]))
  return _Sampled(
      edges, work_us, output_bytes, np.ones(d), _bandwidth(rng, work_us, output_bytes, 0.2, 8))


def _tasks(rng: np.random.Generator) -> _Sampled:
  n, d = int(rng.integers(10, 61)), int(rng.integers(4, 25))
  # Each task reads 1 to 3 of the 8 tasks before it.
  edges = [(int(producer), i) for i in range(1, n)
           for producer in set(rng.integers(max(0, i - 8), i, size=rng.integers(1, 4)).tolist())]
  work_us, output_bytes = rng.uniform(20, 500, n), rng.uniform(1e4, 5e5, n)
  bandwidth = _bandwidth(rng, work_us, output_bytes, 0.1, 3) * rng.uniform(0.3, 2, (d, d))
  allowed = rng.random((n, d)) < rng.uniform(0.15, 0.6)
  # Every task has at least one device.
  allowed[np.arange(n), rng.integers(0, d, n)] = True
  return _Sampled(
      edges, work_us, output_bytes, rng.uniform(0.5, 3, d), bandwidth,
      rng.uniform(0, 50, (d, d)), allowed=allowed)


def _pipelines(rng: np.random.Generator) -> _Sampled:
  n, branches = int(_between(rng, 50, 800)), int(rng.integers(1, 5))
  edges: Edges = []
  for i in range(1, n):
    # A chain with branches: each op reads one of the last few before it.
    edges.append((max(0, i - int(rng.integers(1, branches + 1))), i))
    if rng.random() < 0.1:
      # A skip connection to one op in ten.
      edges.append((int(rng.integers(max(0, i - 30), i)), i))
  work_us, output_bytes = rng.lognormal(5, 1, n), rng.lognormal(12, 1, n)
  accelerators, cpus = int(rng.integers(2, 9)), int(rng.integers(1, 5))
  held = rng.lognormal(15, 1, n)
  # All accelerators together hold 1.05 to 2 times the model.
  memory = held.sum() * rng.uniform(1.05, 2) / accelerators
  # CPUs take 5 to 20 times as long.
  slow = 1 / _between(rng, 5, 20)
  fast = np.arange(accelerators + cpus) < accelerators  # [D]
  return _Sampled(
      sorted(set(edges)), work_us, output_bytes, np.where(fast, 1.0, slow),
      _bandwidth(rng, work_us, output_bytes, 0.05, 2), persistent_bytes=held,
      memory_bytes=np.where(fast, memory, _PLENTY))


def _packed(rng: np.random.Generator) -> _Sampled:
  sampled = _pipelines(rng)
  held, fast = np.asarray(sampled.persistent_bytes), sampled.speed == 1.0
  memory = held.sum() * rng.uniform(1.05, 1.5) / fast.sum()
  return sampled._replace(
      bandwidth=_bandwidth(rng, sampled.work_us, sampled.output_bytes, 0.2, 50),
      memory_bytes=np.where(fast, memory, _PLENTY), packed=True)


_KINDS: Dict[str, Callable[[np.random.Generator], _Sampled]] = {
    "layers": _layers, "products": _products, "tasks": _tasks, "pipelines": _pipelines,
    "packed": _packed}
