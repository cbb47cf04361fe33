"""Checks that a placement belongs to a graph and a cluster, and that its numbers are correct."""

from __future__ import annotations

import contextlib
import math
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import OpCosts, estimate_costs
from placeto_tf.costs.look import looking
from placeto_tf.errors import PlacementError, listed, option
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.shapes import format_shape
from placeto_tf.placements import coverage
from placeto_tf.simulation import SimulationResult, Simulator

_TOLERANCE = 1e-9  # relative: the simulator adds the same numbers in the same order


def check_graph(placement: Any, graph: ComputationGraph) -> None:
  """Checks that a placement was made for a graph, by the facts that the placement stores.

  Args:
    placement: a `Placement`.
    graph: the graph, or the part of it that some of its fetches need.

  Raises:
    PlacementError: the placement was made for another graph; the message names a difference.
  """
  if not placement.fingerprint:
    return
  # A signature of a SavedModel runs a part of the fetches; another fetch is another step.
  if not set(graph.fetches) <= set(placement.fetches):
    raise PlacementError(
        f"the placement was made for a step that runs {_quoted(placement.fetches)}, not "
        f"{_quoted(graph.fetches)}; {_remedy()}")
  check_shapes(placement.shapes, graph.interface_shapes)
  if placement.fingerprint == graph.fingerprint or (
      set(graph.fetches) != set(placement.fetches)):  # a part of the step: one of its signatures
    return
  # Names differ, or types and inputs under equal names.
  known = set(coverage.file_op_names(graph))
  differences = [
      f"{what} {_quoted(ops)}" for what, ops in (
          ("it lacks", [op for op in placement if op not in known]),
          ("it adds", [op for op in graph.op_names if op not in placement])) if ops]
  raise PlacementError(
      "the placement was made for another graph: "
      + (" and ".join(differences) or "its ops have the same names, but other types or inputs")
      + f"; {_remedy()}")


def check_shapes(
    expected: Mapping[str, Tuple[int, ...]], found: Mapping[str, Tuple[int, ...]]) -> None:
  """Compares the shapes of feeds and variables that both mappings contain.

  Args:
    expected, found: op name -> shape, -1 for any size.

  Raises:
    PlacementError: a shape differs.
  """
  others = [op for op, shape in expected.items() if op in found and found[op] != shape]
  if others:
    shown = listed([f"{op!r} is {format_shape(found[op])}, not {format_shape(expected[op])}"
                    for op in others])
    raise PlacementError(
        f"the placement was made for a graph of other shapes: {shown}; {_remedy()}")


def verify(
    placement: Any, graph: ComputationGraph, cluster: Cluster, costs: Optional[OpCosts] = None
) -> SimulationResult:
  """Computes again the numbers that a placement states; see `Placement.verify`.

  Args:
    placement: a `Placement` with all of its fields.
    graph: the graph that the placement was made for.
    cluster: the cluster that it was made for.
    costs: the costs that it was made with; None for grappler's estimates, with or without a look.

  Raises:
    PlacementError: the graph or a device differs, or a number differs or is missing.
  """
  if costs is not None:
    return _verified(placement, graph, cluster, costs)
  # It was placed without a look at the step, or with what the look has found.
  with contextlib.suppress(PlacementError), looking("no"):
    return _verified(placement, graph, cluster, estimate_costs(graph, cluster))
  return _verified(placement, graph, cluster, estimate_costs(graph, cluster))


def _verified(
    placement: Any, graph: ComputationGraph, cluster: Cluster, costs: OpCosts) -> SimulationResult:
  """Returns the simulated step; raises as `verify`."""
  result = Simulator(graph, costs, cluster).simulate(placement.indices(graph, cluster))
  # (name, value in the placement, value found) of every number.
  checks: List[Tuple[str, Any, Any]] = [
      ("step_time_us", placement.step_time_us, float(result.step_time_us))]
  checks += [
      (f"peak_memory_bytes of {name}", placement.peak_memory_bytes.get(name), float(found))
      for name, found in zip(cluster.device_names, result.peak_memory_bytes)]
  for name, said, found in checks:
    if said is None or not math.isclose(said, found, rel_tol=_TOLERANCE):
      raise PlacementError(
          f"{name} is {found!r}, not {said!r} as the placement says; it was made with other costs "
          "or for another cluster, or its file is wrong: place the graph again")
  return result


def _remedy() -> str:
  """Returns what to do about a placement of another graph."""
  return f"place this graph again, or allow any graph ({option('any_graph', True)})"


def _quoted(names: Sequence[str]) -> str:
  return listed(list(map(repr, names)))
