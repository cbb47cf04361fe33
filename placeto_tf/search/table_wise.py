"""Greedy placements of large tables, as recommenders are placed by hand: the baselines.

Each table goes to the device with the least cost so far, dearest table first. A table is a variable
of which ops use only some rows, with all that is colocated with it. Costs are those of DreamShard's
baselines (Zha et al. 2022): the bytes of the table, the bytes of the rows that a step looks up, or
their product. All other ops are where the best layout of `symmetric` puts them: with replicas, each
on its own device; otherwise on the first device.

Dimensions: N ops.
"""

from __future__ import annotations

import functools
from typing import Callable, Optional, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import allowed_or_nearest, best_of, compute_devices
from placeto_tf.problem.host_options import used_by_rows
from placeto_tf.problem.method import Kind, Method, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.symmetric import place_shares

# (bytes of tables, bytes of the rows that a step looks up) -> costs of the tables
Cost = Callable[[np.ndarray, np.ndarray], np.ndarray]


def place_tables(
    problem: PlacementProblem, budget: Optional[Budget] = None, *, cost: Cost) -> np.ndarray:
  """Evaluates one greedy placement of the tables.

  Args:
    problem: evaluates.
    budget: of the evaluation and the layouts before it.
    cost: of a table.

  Returns:
    [N] int32; the layout without a change if the graph has no table.
  """
  placement, devices = place_shares(problem, budget).copy(), compute_devices(problem)
  tables, held, read = tables_of(problem)
  dearness, load = cost(held[tables], read[tables]), np.zeros(len(devices))
  for i in np.argsort(-dearness, kind="stable").tolist():
    target = int(load.argmin())
    load[target] += dearness[i]
    placement[problem.graph.colocation == tables[i]] = devices[target]
  return best_of(problem, allowed_or_nearest(problem, placement), budget)


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
           unseeded(functools.partial(place_tables, cost=cost)), f"tables by {name}")
    for name, cost in (
        ("size", lambda size, lookups: size), ("lookups", lambda size, lookups: lookups),
        ("size_x_lookups", lambda size, lookups: size * lookups)))
