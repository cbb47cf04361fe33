"""Favourite children: the linear program of m-SCT.

Hanen and Munier, "An approximation algorithm for scheduling dependent tasks on m processors with
small communication delays" (1995), as Baechi uses it. For every edge (u, v) x_uv is 0 if v
follows u on its device without delay and 1 if it pays the transfer c_uv:

  minimise    w
  subject to  start_v >= start_u + p_u + c_uv x_uv   for every edge
              w >= start_u + p_u                     for every op without consumers
              sum over consumers v of (1 - x_uv) <= 1  for every producer u
              sum over producers u of (1 - x_uv) <= 1  for every consumer v
              0 <= x <= 1, start >= 0

v is u's favourite child if the solution has x_uv below 0.1. If the program is too large for its
time limit, edges are taken greedily, the longest transfers first, which satisfies the same two
sums.

Legend: N ops, F pairs of ops with an edge.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.problem.placement_problem import PlacementProblem

MAX_EDGES = 12_000
MAX_SECONDS = 10.0
_THRESHOLD = 0.1


def favourite_children(problem: PlacementProblem) -> List[int]:
  """[N] the favourite child of each op, or -1."""
  graph, cluster = problem.graph, problem.cluster
  n = graph.num_ops
  producers, consumers, transfer_us = _pairs(problem)
  compute_us = np.where(
      problem.allowed_ops, problem.costs.compute_us[:, cluster.device_kinds], np.inf).min(axis=1)
  stays = None
  if 0 < len(producers) <= MAX_EDGES:
    stays = _solve(n, producers, consumers, compute_us, transfer_us)
  if stays is None:
    stays = transfer_us
  else:
    stays = np.where(stays > 1 - _THRESHOLD, stays, 0.0)
  children, parents = [-1] * n, [-1] * n
  for e in np.argsort(-stays, kind="stable").tolist():
    u, v = int(producers[e]), int(consumers[e])
    if stays[e] > 0 and children[u] < 0 and parents[v] < 0:
      children[u], parents[v] = v, u
  return children


def _pairs(problem: PlacementProblem) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Producer, consumer and transfer time of every pair of ops with an edge."""
  graph, cluster = problem.graph, problem.cluster
  d = cluster.num_devices
  size = problem.costs.edge_bytes(graph)
  off = ~np.eye(d, dtype=bool)
  us_per_byte = float(np.mean(1 / cluster.bandwidth_bytes_per_us[off])) if d > 1 else 0.0
  latency_us = float(np.mean(cluster.latency_us[off])) if d > 1 else 0.0
  keys = graph.edge_producers.astype(np.int64) * graph.num_ops + graph.edge_consumers
  pairs, inverse = np.unique(keys, return_inverse=True)
  transfer_us = np.bincount(inverse.reshape(-1), size, minlength=len(pairs)) * us_per_byte
  return pairs // graph.num_ops, pairs % graph.num_ops, transfer_us + latency_us


def _solve(
    n: int, producers: np.ndarray, consumers: np.ndarray, compute_us: np.ndarray,
    transfer_us: np.ndarray) -> Optional[np.ndarray]:
  """[F] 1 - x, or None where the solver did not finish."""
  from scipy import optimize, sparse  # slow to import, and few need it

  f = len(producers)
  edges = np.arange(f)
  scale = 1 / max(1e-9, float(compute_us.sum()))
  compute, transfer = compute_us * scale, transfer_us * scale
  # Columns: start [N], stays = 1 - x [F], w.
  rows = []
  limits = []
  # start_u - start_v - c stays <= -p_u - c
  rows.append(sparse.coo_matrix(
      (np.concatenate([np.ones(f), -np.ones(f), -transfer]),
       (np.tile(edges, 3), np.concatenate([producers, consumers, n + edges]))),
      shape=(f, n + f + 1)))
  limits.append(-compute[producers] - transfer)
  # start_u + p_u <= w
  last = np.setdiff1d(np.arange(n), producers)
  rows.append(sparse.coo_matrix(
      (np.concatenate([np.ones(len(last)), -np.ones(len(last))]),
       (np.tile(np.arange(len(last)), 2),
        np.concatenate([last, np.full(len(last), n + f)]))), shape=(len(last), n + f + 1)))
  limits.append(-compute[last])
  for ends in (producers, consumers):
    rows.append(sparse.coo_matrix((np.ones(f), (ends, n + edges)), shape=(n, n + f + 1)))
    limits.append(np.ones(n))
  objective = np.zeros(n + f + 1)
  objective[-1] = 1.0
  bounds = np.zeros((n + f + 1, 2))
  bounds[:, 1] = np.inf
  bounds[n:n + f, 1] = 1.0
  found = optimize.linprog(
      objective, A_ub=sparse.vstack(rows).tocsr(), b_ub=np.concatenate(limits), bounds=bounds,
      method="highs-ipm", options={"time_limit": MAX_SECONDS})
  return found.x[n:n + f] if found.x is not None and found.status == 0 else None
