"""Greedy placements of large tables, as recommenders are placed by hand: the baselines.

Each table goes to the device with the least cost so far that has memory for it, dearest first. A
table is a variable of which ops use only some rows, with all that is colocated with it and the ops
that serve it alone: look-ups, sums of the rows of a bag, sparse gradients. Costs are those of
DreamShard's baselines (Zha et al. 2022): the bytes of the table, the bytes of the rows that a step
looks up, or their product. All other ops are on the first device; with replicas, each replica is on
its own device.

Dimensions: N ops.
"""

from __future__ import annotations

import functools
from typing import Callable, Optional, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.problem import candidates
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.host_options import used_by_rows
from placeto_tf.problem.method import Kind, Method, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication.layouts import layouts

# [tables] bytes, [tables] bytes of the rows that a step looks up, free bytes of devices
# -> [tables] index of a device
Deal = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
_HOPS = 12  # the most edges between a table and an op that serves it


def place_tables(
    problem: PlacementProblem, budget: Optional[Budget] = None, *, deal: Deal) -> np.ndarray:
  """Evaluates one placement of the tables.

  Args:
    problem: evaluates.
    budget: of the evaluation.
    deal: chooses the devices of the tables, which are in the order of their first ops.

  Returns:
    [N] int32; the layout without a change if the graph has no table.
  """
  devices = candidates.compute_devices(problem)
  placement = candidates.on_one_device(problem) if problem.replicated is None else layouts(
      problem.replicated, problem.costs, devices)[0]
  tables, held, read = tables_of(problem)
  served = _served(problem, tables)
  free_bytes = problem.cluster.memory_bytes - np.bincount(
      placement, problem.costs.persistent_bytes * (served < 0), minlength=problem.num_devices)
  targets = np.array(devices)[deal(held[tables], read[tables], free_bytes[devices])]
  placement[served >= 0] = targets[np.searchsorted(tables, served[served >= 0])]
  return candidates.best_of(problem, candidates.allowed_or_nearest(problem, placement), budget)


def _greedy(
    size: np.ndarray, lookups: np.ndarray, free_bytes: np.ndarray, *,
    cost: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
  """Deals the dearest table first, to the device with the least cost so far that has memory."""
  dearness, load, left = cost(size, lookups), np.zeros(len(free_bytes)), free_bytes.copy()
  targets = np.zeros(len(size), np.int64)
  for i in np.argsort(-dearness, kind="stable").tolist():
    fits = left >= size[i]
    targets[i] = np.where(fits, load, np.inf).argmin() if fits.any() else left.argmax()
    load[targets[i]] += dearness[i]
    left[targets[i]] -= size[i]
  return targets


def _served(problem: PlacementProblem, tables: np.ndarray) -> np.ndarray:
  """Returns the table that each op serves alone, [N] label of a set of ops, else -1.

  An op joins a table if all its inputs come from ops of the table and it makes no more bytes than
  it reads there; or if all its outputs go there, and its other inputs have hardly more bytes.
  """
  graph, costs, n = problem.graph, problem.costs, problem.graph.num_ops
  data = graph.edge_ports != CONTROL
  u, v = graph.edge_producers[data], graph.edge_consumers[data]
  made, read = costs.made_bytes(graph), costs.edge_bytes(graph)[data]
  sets, given = graph.colocation, np.bincount(v, minlength=n) == 0  # constants and fed values
  label = np.where(np.isin(sets, tables), sets, -1)
  for _ in range(_HOPS):
    before = label
    common = _common(v[~given[u]], label[u[~given[u]]], n)
    inside = np.bincount(v, read * (label[u] == common[v]), minlength=n)
    label = np.where((label < 0) & (made <= inside), common, label)
    common = _common(u, label[v], n)
    away = np.bincount(v, read * ~given[u] * (label[u] != common[v]), minlength=n)
    label = np.where((label < 0) & (away <= 2 * made), common, label)
    label = _common(sets, label, n)[sets]  # a set joins as a whole
    if (label == before).all():
      break
  return label


def _common(at: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
  """Returns [count] the label that all `labels` at an index have, else -1."""
  least, most = np.full(count, count), np.full(count, -1)
  np.minimum.at(least, at, labels)
  np.maximum.at(most, at, labels)
  return np.where(least == most, most, -1)


def tables_of(problem: PlacementProblem) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the labels of the sets of ops with tables; and by label, the bytes of variables [N] and
  of the rows of them that a step reads [N]."""
  graph, costs = problem.graph, problem.costs
  sets, n, by_rows = graph.colocation, graph.num_ops, used_by_rows(graph)
  held = np.bincount(sets, costs.persistent_bytes, minlength=n)
  # An op in the set reads rows by the handle; another op may take rows of a value that was read.
  read = np.bincount(sets, costs.made_bytes(graph) * by_rows, minlength=n)
  data = graph.edge_ports != CONTROL
  u, v = graph.edge_producers[data], graph.edge_consumers[data]
  other = by_rows[v] & (sets[u] != sets[v]) & (held[sets[u]] > 0)
  np.add.at(read, sets[u[other]], costs.made_bytes(graph)[v[other]])
  return np.flatnonzero((held > 0) & (read > 0)), held, read


def is_mostly_tables(problem: PlacementProblem) -> bool:
  """Returns whether tables hold more than half of the bytes of variables."""
  tables, held, _ = tables_of(problem)
  return bool(2 * held[tables].sum() > held.sum() > 0)


METHODS = tuple(
    Method(f"tables_by_{name}", Kind.CONSTRUCTION,
           unseeded(functools.partial(place_tables, deal=functools.partial(_greedy, cost=cost))),
           f"tables by {name}")
    for name, cost in (
        ("size", lambda size, lookups: size), ("lookups", lambda size, lookups: lookups),
        ("size_x_lookups", lambda size, lookups: size * lookups)))
