"""Makes the `report.json` of a placing run, and a line on the placed step."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict

import numpy as np

from placeto_tf.errors import counted, listed
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placing import tables, what_if
from placeto_tf.placing.measured_search import MeasuredSearch
from placeto_tf.placing.result import PlacingResult, Replication


def report(result: PlacingResult) -> Dict[str, Any]:
  """Returns the run as JSON: the graph, the options, and every row of the table."""
  config, explanation = result.config, result.explanation
  return {
      "graph": _graph(result.graph),
      "cluster": result.cluster.to_json(), "costs": str(config.costs),
      "method": config.method, "seed": config.seed, "grouping": config.grouping,
      "pins": dict(config.pins), "existing_devices": config.existing_devices,
      "max_groups": config.max_groups, "max_seconds": config.budget.max_seconds,
      "max_evaluations": config.budget.max_evaluations,
      "independent_runs": config.num_runs,
      "step_time_us": result.step_time_us,
      "lower_bound_us": result.lower_bound_us, "proven_optimal": result.proven,
      "explanation": {**dataclasses.asdict(explanation), "text": str(explanation)},
      "why": what_if.why(result, what_if.notable(result)),
      "speedup_over_current": tables.ratio(result.baselines["current"].step_time_us,
                                     result.step_time_us),
      "peak_memory_bytes": dict(zip(
          result.cluster.device_names, result.peak_memory_bytes.tolist())),
      "evaluations": result.evaluations, "seconds": result.seconds,
      "at_most_above_the_best": tables.above(result), "stop_within": config.budget.stop_within,
      "interrupted": result.interrupted, "ended": result.ended,
      "baselines": {
          name: {
              **_fields(row, "step_time_us", "fits", "evaluations", "seconds", "gain_us",
                        "start_us"),
              "peak_memory_bytes": None if row.step_time_us is None else dict(zip(
                  result.cluster.device_names, row.peak_memory_bytes.tolist()))}
          for name, row in result.baselines.items()},
      "history": [
          {"evaluations": e, "seconds": s, "objective_us": o} for e, s, o in result.history],
      "measured": None if result.measured is None else _measured(result.measured),
      "replicas": None if result.replication is None else _replication(result.replication),
      "unknown": result.costs.unknown,
      "notes": list(result.notes),
  }


def _graph(graph: ComputationGraph) -> Dict[str, Any]:
  """Returns the graph as JSON, with the options of `load_graph`."""
  source = graph.source
  return {
      "fingerprint": graph.fingerprint, "fetches": list(graph.fetches),
      "path": source.path if source else None, "ops": graph.num_ops,
      "options": {} if source is None else {
          "feeds": list(graph.feeds),
          "feed_shapes": {name: list(shape) for name, shape in source.feed_shapes.items()},
          "trip_count": source.trip_count, "split_loops": source.split_loops}}


def _measured(found: MeasuredSearch) -> Dict[str, Any]:
  """Returns the measurements as JSON; the history has the fastest step after each number."""
  return {
      **_fields(found.step, "step_time_us", "low_us", "high_us"),
      "measurements": found.measurements, "failures": found.failures,
      "history": [{"measurements": m, "step_time_us": us} for m, us in found.history],
      "placers": {name: None if step.failure else step.step_time_us
                  for name, step in found.by_placer.items()}}


def _fields(record: Any, *names: str) -> Dict[str, Any]:
  """Returns attributes of a record as JSON."""
  # Convert arrays to lists for JSON.
  values = {name: getattr(record, name) for name in names}
  return {name: value.tolist() if isinstance(value, np.ndarray) else value
          for name, value in values.items()}


def step_line(graph: ComputationGraph) -> str:
  """Returns a sentence on the step: its fetches and its feeds.

  Results that are copied by Identity ops, such as results of functions, have the name of the op
  that computes them.
  """
  shapes = graph.source.feed_shapes if graph.source is not None else {}
  feeds = [name + (f" [{', '.join(map(str, shapes[name]))}]" if name in shapes else "")
           for name in graph.feeds]
  # Fetched tensors are results; fetched ops have side effects.
  results = [_computed(graph, name) for name in graph.fetches if ":" in name]
  effects = [name for name in graph.fetches if ":" not in name]
  runs = f"A step runs {listed([*results, *effects], most=4)}"
  if len(effects) > 4:
    computes = f"A step computes {listed(results, most=4)} and" if results else "A step"
    runs = f"{computes} runs {len(effects)} ops for their effects, such as {effects[0]}"
  fed = f", fed {listed(feeds, most=4)}" if feeds else ""
  return f"{runs}{fed}: {counted(graph.num_ops, 'op')}."


def _computed(graph: ComputationGraph, fetch: str) -> str:
  """Returns the name of the tensor that a fetched tensor copies."""
  name, _, port = fetch.rpartition(":")
  op = graph.op_index[name]
  # Back through copies to the op that computes the tensor.
  while graph.op_types[op] == "Identity":
    edges = np.flatnonzero((graph.edge_consumers == op) & (graph.edge_ports >= 0))
    op, port = int(graph.edge_producers[edges[0]]), str(graph.edge_ports[edges[0]])
  return f"{graph.op_names[op]}:{port}"


def _replication(replication: Replication) -> Dict[str, Any]:
  """Returns the results of every replication strategy as JSON, and the feeds of the replicas."""
  found, grown = replication.data_parallel, replication.grown
  return {
      # Speed-ups are per example: step times of the baselines are scaled to the new batch.
      "batch_grew": None if grown is None else {"from": grown[1], "to": grown[0]},
      "placed": None if replication.chosen is None else replication.chosen.describe(),
      "rows": {
          strategy: {
              "mirrored_variables": row.mirrored,
              **_fields(row, "replicas", "micro_batches", "step_time_us", "global_batch",
                        "examples_per_second", "fits", "peak_memory_bytes", "evaluations",
                        "dropped", "check")}
          for strategy, row in replication.rows.items()},
      "data_parallel": None if found is None else {
          "global_batch": replication.data_parallel_batch,
          "bucket_bytes": found.bucket_bytes if np.isfinite(found.bucket_bytes) else None,
          **_fields(found, "step_time_us", "fits", "peak_memory_bytes", "reduced_bytes")},
      "refused": replication.refused, "not_made": dict(replication.not_made),
      "check": None if replication.check is None else {
          **dataclasses.asdict(replication.check), "text": str(replication.check)}}
