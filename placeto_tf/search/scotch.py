"""Scotch: the op graph mapped onto the cluster's devices, the baseline of Placeto's paper.

Pellegrini and Roman, "Scotch: a software package for static mapping by dual recursive
bipartitioning of process and architecture graphs" (1996). The target is a complete graph of the
devices, weighted by speed. The library comes with `pip install 'placeto_tf[scotch]'` (Linux);
without the library this method is not listed.

Dimensions: M nodes of ops that must share a device.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Iterator, List

import numpy as np

from placeto_tf.grouping.contraction import Contraction
from placeto_tf.problem.candidates import device_speeds
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.metis import partition_ops

_LARGEST = 10_000  # weights are whole numbers up to this


def mappings(
    problem: PlacementProblem, contraction: Contraction, devices: List[int], seed: int
) -> Iterator[np.ndarray]:
  """Yields the mapping of the nodes by Scotch's default strategy.

  Args:
    problem: of the speeds of the devices.
    contraction: of M nodes.
    devices: the devices to map to, hosts excepted.
    seed: of Scotch's random numbers.

  Yields:
    [M] int32, index into `devices` of every node.
  """
  import pyscotch

  speeds = device_speeds(problem, devices)
  nodes, pairs = contraction.num_nodes, (contraction.producers, contraction.consumers)
  # Each pair of nodes from both of its ends, sorted by the first.
  # [2, 2 * pairs], both directions: Scotch takes symmetric adjacency in compressed rows.
  ends = np.concatenate([np.stack(pairs), np.stack(pairs[::-1])], axis=1)
  both, place = np.unique(ends, axis=1, return_inverse=True)
  # Traffic of both directions of a pair adds up.
  traffic = np.bincount(place.ravel(), np.tile(contraction.traffic_bytes, 2))
  # [M + 1] index of each node's first neighbour.
  first = np.concatenate([[0], np.cumsum(np.bincount(both[0], minlength=nodes))])
  architecture = pyscotch.Architecture()
  # Complete target graph: all devices are connected with each other, and weighted by speed.
  architecture.complete_weighted(len(speeds), _whole(np.asarray(speeds)))
  graph = pyscotch.Graph()
  graph.build(first, both[1], _whole(contraction.weight_us), _whole(traffic))
  # The seed takes effect with the reset.
  pyscotch.libscotch.SCOTCH_randomSeed(seed)
  pyscotch.random_reset()
  yield np.asarray(graph.map(architecture), dtype=np.int32)


def _whole(weights: np.ndarray) -> np.ndarray:
  """Scales weights to whole numbers of at least 1, as Scotch requires."""
  return np.maximum(1, np.round(weights * (_LARGEST / max(weights.max(initial=0.0), 1e-9)))
                    ).astype(np.int64)


METHODS = (
    Method("scotch", Kind.CONSTRUCTION, plain(functools.partial(partition_ops, divide=mappings)),
           title="Scotch", rank=5, start_rank=6),
) if importlib.util.find_spec("pyscotch") else ()
