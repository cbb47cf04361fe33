"""Scotch: the op graph mapped onto the cluster's devices, the baseline of Placeto's paper.

Pellegrini and Roman, "Scotch: a software package for static mapping by dual recursive
bipartitioning of process and architecture graphs" (1996). The target is a complete graph of the
devices, weighted by speed. The library comes with `pip install 'placeto_tf[scotch]'` (Linux);
without the library this method is not listed.

Dimensions: N ops, M nodes of ops that must share a device, D devices.
"""

from __future__ import annotations

import importlib.util
from typing import Optional

import numpy as np

from placeto_tf.grouping.contraction import Contraction, contract
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import (
  allowed_or_nearest,
  best_of,
  compute_devices,
  device_speeds,
)
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.problem.placement_problem import PlacementProblem

_LARGEST = 10_000  # weights are whole numbers up to this


def map_ops(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """Maps the graph of colocated ops onto the devices, hosts excepted.

  Args:
    problem: evaluates the placement once.
    budget: of the evaluation.
    seed: of Scotch's random numbers.

  Returns:
    The placement, [N].
  """
  devices = compute_devices(problem)
  # [M] nodes: colocated ops are one node, weighted by compute time and traffic.
  contraction = contract(
      problem.graph, problem.costs, problem.allowed_ops, problem.graph.colocation)
  parts = np.zeros(contraction.num_nodes, dtype=np.int32)
  # With one device or one node there is nothing to divide, and Scotch is not needed.
  if len(devices) > 1:
    parts = _mapped(contraction, device_speeds(problem, devices), seed)
  # Parts are positions among `devices`; [M] to [N] by each op's node.
  node_devices = np.asarray(devices, dtype=np.int32)[parts]
  found = allowed_or_nearest(problem, node_devices[contraction.node_of_op])
  return best_of(problem, found[None], budget)


def _mapped(contraction: Contraction, speeds: np.ndarray, seed: int) -> np.ndarray:
  """Returns [M] the index of each node's device, by Scotch's default strategy."""
  import pyscotch

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
  return np.asarray(graph.map(architecture), dtype=np.int32)


def _whole(weights: np.ndarray) -> np.ndarray:
  """Scales weights to whole numbers of at least 1, as Scotch requires."""
  return np.maximum(1, np.round(weights * (_LARGEST / max(weights.max(initial=0.0), 1e-9)))
                    ).astype(np.int64)


METHODS = (
    Method("scotch", Kind.CONSTRUCTION, plain(map_ops), title="Scotch", rank=5, start_rank=6),
) if importlib.util.find_spec("pyscotch") else ()
