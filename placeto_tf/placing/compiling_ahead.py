"""Compiles the code of a search before its clock starts, once per installation.

Every part of the search runs for a moment on a problem of a few ops with the same engine, which
compiles the functions that the search will need; numba caches the code. A file beside the cache
records the engine and the method.
"""

from __future__ import annotations

import contextlib
import pathlib
from typing import Callable, ContextManager, List, Set

import numpy as np

from placeto_tf.costs import OpCosts
from placeto_tf.graphs import ComputationGraph
from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.simulation import compiling

STAGE = "Compiling for this kind of cluster, once per installation (about 15 seconds)"
_OPS, _EVALUATIONS = 40, 100
_done: Set[str] = set()  # markers of this process, if no code can be cached


def compile_ahead(
    problem: PlacementProblem, method: Method,
    stage: Callable[[str], ContextManager] = contextlib.nullcontext) -> None:
  """Compiles the code that a method needs to place a problem, unless it is compiled already.

  Args:
    problem: the problem to place.
    method: the method that will place it.
    stage: function from a name to a context manager, entered while code is compiled.
  """
  # One marker file per engine and method.
  name = f"{type(problem.simulator.engine).__name__}.{method.name}"
  folder = compiling.folder()
  marker = None if folder is None else pathlib.Path(folder, name)
  if name in _done or marker is not None and marker.exists():
    return
  with stage(STAGE):
    small = _small(problem)
    # Bounds, then each part of the method, on a problem of 40 ops.
    lower_bound_us(small)
    for part in _parts(method):
      running.run(small.renewed(), part, Budget(max_evaluations=_EVALUATIONS))
  _done.add(name)
  if marker is not None:
    with contextlib.suppress(OSError):
      marker.touch()


def _parts(method: Method) -> List[Method]:
  """Returns the method, or the methods that `auto` runs.

  A method that runs in TensorFlow is left out, because TensorFlow's traces are not cached.
  """
  if method.kind is Kind.AUTO:
    return list(registry.parts_of_auto(learned=method.name == "auto"))
  return [*registry.references(), *(() if method.in_tensorflow else (method,))]


def _small(problem: PlacementProblem) -> PlacementProblem:
  """Makes a problem of a few ops on the same cluster, with all kinds of edges."""
  rng = np.random.default_rng(0)
  # (producer, port, consumer); port -1 is a control edge.
  edges = [(int(u), int(rng.integers(-1, 1)), v) for v in range(1, _OPS)
           for u in rng.integers(max(0, v - 6), v, 2)]
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(_OPS)], ["MatMul"] * _OPS, [1] * _OPS, edges)
  kinds = len(problem.cluster.kind_devices)
  costs = OpCosts(
      np.repeat(rng.uniform(10, 20, (_OPS, 1)), kinds, axis=1), rng.uniform(1e3, 1e5, _OPS),
      np.zeros(_OPS), np.zeros(_OPS))
  return PlacementProblem.build(graph, problem.cluster, costs=costs, max_groups=_OPS // 2 + 4)
