"""What it costs that some ops have to stay where they are.

A live function may capture what cannot be moved, and signatures of a SavedModel share variables.

Legend: N ops, D devices.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.simulation import Simulator

_MAX_SETS = 32  # of ops that stay with one fixed resource; more would take too long


def fixed_cost_note(simulator: Simulator, placement: np.ndarray) -> str:
  """A note on how much faster the step would be if fixed resources could be elsewhere, or "".

  Each fixed resource in turn is moved, with the ops that touch it, to the device that helps most;
  all other ops stay. So this is a lower bound on the gain.

  Args:
    simulator: of the graph on its cluster.
    placement: [N] the best placement found, with what is fixed where it is.
  """
  graph, cluster = simulator.graph, simulator.cluster
  if graph.source is None or not graph.source.fixed_devices:
    return ""
  fixed = [op for op in graph.source.fixed_devices if op in graph.op_index]
  labels = list(dict.fromkeys(int(graph.colocation[graph.op_index[op]]) for op in fixed))
  free = allowed_devices(
      dataclasses.replace(graph, source=dataclasses.replace(graph.source, fixed_devices={})),
      cluster)
  best = np.array(placement, dtype=np.int32)
  held_us = best_us = float(simulator.simulate_many(best)[0][0])
  for label in labels[:_MAX_SETS]:
    mates = graph.colocation == label
    devices = np.flatnonzero(free[label])
    candidates = np.repeat(best[None], len(devices), axis=0)
    candidates[:, mates] = devices[:, None]
    step_time_us, peak = simulator.simulate_many(candidates)
    step_time_us = np.where((peak <= cluster.memory_bytes).all(axis=1), step_time_us, np.inf)
    if step_time_us.min() < best_us:
      best, best_us = candidates[step_time_us.argmin()], float(step_time_us.min())
  what = "what has to stay where it is ({} op{} with what is colocated)".format(
      len(fixed), "s" if len(fixed) > 1 else "")
  if best_us >= held_us:
    return f"{what} costs nothing: no other device for one of them would make the step faster"
  return (
      f"{what} costs at least {held_us - best_us:,.0f} us a step: {held_us:,.0f} us with it there, "
      f"{best_us:,.0f} us if it could be elsewhere")
