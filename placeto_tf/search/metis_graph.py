"""`MetisGraph`: a contracted graph in METIS's format.

Dimensions: M nodes, P parts.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pymetis

from placeto_tf.grouping.contraction import Contraction

# Number of METIS's parts for each wanted part, if METIS cannot aim at unequal weights by itself.
_PARTS_PER_PART = 8
_HAS_TARGETS = "tpwgts" in inspect.signature(pymetis.part_graph).parameters
# METIS samples by the C library's rand(), which all threads of a process share. Ray's threads call
# it up to once a second, so now and then a partition differs; two in a row hardly ever differ.
_ALSO_SAMPLES = "ray"
_MORE_TRIES = 5  # large graphs take so long that Ray samples during most of their partitions

_SILENCE = threading.Lock()  # one thread at a time exchanges the standard output


class MetisGraph:
  """The undirected graph METIS partitions: integer weights, adjacency in CSR form."""

  def __init__(self, contraction: Contraction, movable: np.ndarray):
    """Converts a contraction.

    Args:
      contraction: the graph.
      movable: [M] bool, whether a node has a weight in the balance of parts.
    """
    m = contraction.num_nodes
    u = np.concatenate([contraction.producers, contraction.consumers]).astype(np.int64)
    v = np.concatenate([contraction.consumers, contraction.producers]).astype(np.int64)
    keys, inverse = np.unique(u * m + v, return_inverse=True)
    traffic = np.bincount(inverse.reshape(-1), np.tile(contraction.traffic_bytes, 2))
    starts, neighbours = np.searchsorted(keys // m, np.arange(m + 1)), keys % m
    self.has_edges = len(neighbours) > 0
    # pymetis below 2025 takes the two arrays by name; later ones warn of that.
    self.adjacency: Dict[str, Any] = (
        {"adjacency": pymetis.CSRAdjacency(starts.tolist(), neighbours.tolist())}
        if hasattr(pymetis, "CSRAdjacency")
        else {"xadj": starts.tolist(), "adjncy": neighbours.tolist()})
    # METIS adds weights up in 32 bits.
    self.edge_weights = _integers(traffic, 5e8)
    weight_us = np.where(movable, contraction.weight_us, 0.0)
    self.node_weights = _integers(weight_us, 1e8)
    self.weight_us = weight_us

  def partition(
      self, shares: np.ndarray, imbalance: float, recursive: bool, seed: int) -> np.ndarray:
    """Partitions the nodes by METIS.

    Args:
      shares: [P] share of the weight for each part.
      imbalance: fraction by which a part may exceed its share.
      recursive: True bisects recursively, False makes all parts at once.
      seed: of METIS.

    Returns:
      [M] part of every node.
    """
    equal = np.allclose(shares, shares[0])
    targets: Dict[str, Any] = {"tpwgts": shares.tolist()} if _HAS_TARGETS and not equal else {}
    count = len(shares) if equal or targets else len(shares) * _PARTS_PER_PART
    if not self.has_edges or len(self.node_weights) <= count:
      each = np.arange(len(self.node_weights), dtype=np.int32)
      return self._distribute(each, shares, len(each))
    # No node may weigh more than a part's share of what the nodes then weigh together, or METIS
    # leaves parts without nodes.
    weights, heaviest = self.node_weights, 0
    while max(weights) > (heaviest := max(1, sum(weights) // count)):
      weights = [min(weight, heaviest) for weight in weights]
    options = pymetis.Options(ufactor=int(1000 * imbalance), seed=seed)

    def partition() -> np.ndarray:
      with _silent():
        _, found = pymetis.part_graph(
            count, vweights=weights, eweights=self.edge_weights, recursive=recursive,
            options=options, **self.adjacency, **targets)
      return np.asarray(found, dtype=np.int32)

    parts = _undisturbed(partition)
    return parts if count == len(shares) else self._distribute(parts, shares, count)

  def _distribute(self, parts: np.ndarray, shares: np.ndarray, count: int) -> np.ndarray:
    """Merges small parts, heaviest first, each into the part that is furthest below its share."""
    weight = np.bincount(parts, self.weight_us, minlength=count)
    load = np.zeros(len(shares))
    target = np.zeros(count, dtype=np.int32)
    for part in np.argsort(-weight, kind="stable").tolist():
      d = int(((load + weight[part]) / shares).argmin())
      target[part] = d
      load[d] += weight[part]
    return target[parts]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
  """Discards what METIS prints by the C library: a warning for each set of parts without nodes."""
  with _SILENCE:
    try:
      saved = os.dup(1)
    except OSError:  # the process has no standard output
      yield
      return
    flush = ctypes.CDLL(None).fflush
    try:
      if sys.stdout is not None:
        sys.stdout.flush()
      flush(None)
      with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)
      yield
    finally:
      flush(None)
      os.dup2(saved, 1)
      os.close(saved)


def _undisturbed(partition: Callable[[], np.ndarray]) -> np.ndarray:
  """Returns the partition that METIS finds when nobody else samples from the same generator.

  Where somebody may, that is the partition that it finds twice in a row.
  """
  found = partition()
  for _ in range(_MORE_TRIES if _ALSO_SAMPLES in sys.modules else 0):
    before, found = found, partition()
    if np.array_equal(found, before):
      break
  return found


def _integers(values: np.ndarray, total: float) -> List[int]:
  """Scales to integers of at least 1 that add up to about `total`."""
  amount = float(values.sum())
  if not amount > 0:
    return [1] * len(values)
  return np.maximum(1, np.rint(values * (total / amount))).astype(np.int64).tolist()
