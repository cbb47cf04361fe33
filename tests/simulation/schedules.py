"""Schedules worked out by hand, asked of the simulator and of the plain one.

So both are known to follow the rules of docs/simulator.md, and not only each other.
"""

import numpy as np
import pytest
from executor_oracle import ExecutorOracle
from oracle import Oracle
from random_cases import make_cluster, make_costs

from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.simulation.simulator import Simulator


def check(ops, edges, *, starts=None, sent=None, step_us=None, peaks=None, jobs=None, sizes=None,
          devices=2, fetched=(), temporary=None, **cluster_fields):
  """Simulates {name: (compute us, device)}, one output an op of `sizes[name]` bytes (default 1).

  Edges are "a>b" or, for control, "a~b"; ports other than 0 stand as "a:1>b". What is expected of
  `starts` and `sent` by name (or of all that is sent, in its order), the step, peaks of memory, and
  jobs (whether one packs, device, start, end) is compared; the result is returned.
  """
  names = list(ops)
  rows, num_outputs = [], dict.fromkeys(names, 1)
  for edge in edges:
    producer, consumer = edge.replace("~", ">").split(">")
    producer, _, port = producer.partition(":")
    port = CONTROL if "~" in edge else int(port or 0)
    num_outputs[producer] = max(num_outputs[producer], port + 1)
    rows.append((names.index(producer), port, names.index(consumer)))
  output_bytes = []
  for name in names:
    for port in range(num_outputs[name]):
      output_bytes.append((sizes or {}).get(f"{name}:{port}" if port else name, 1))
  is_fetched = np.zeros(len(output_bytes), dtype=bool)
  offset = np.cumsum([0] + [num_outputs[name] for name in names])
  for name in fetched:
    is_fetched[offset[names.index(name)]] = True
  graph = ComputationGraph.from_edges(
      names, ["X"] * len(names), [num_outputs[name] for name in names], rows,
      fetched_outputs=is_fetched)
  costs = make_costs(
      [ops[name][0] for name in names], output_bytes,
      temporary=[(temporary or {}).get(name, 0) for name in names])
  cluster = make_cluster(devices, **cluster_fields)
  placement = [ops[name][1] for name in names]
  result = Simulator(graph, costs, cluster, num_threads=1).simulate(placement)
  executor = cluster.ready_order == "executor"
  plain = ExecutorOracle(graph, costs, cluster) if executor else Oracle(graph, costs, cluster)
  step_time_us, start_us, transfers = plain.schedule(placement)
  assert result.step_time_us == step_time_us
  assert result.start_us.tolist() == start_us
  in_order = [transfers[key] for key in sorted(transfers)]
  assert list(zip(result.transfers.start_us.tolist(), result.transfers.end_us.tolist())) == in_order
  if not executor:
    assert result.peak_memory_bytes.tolist() == pytest.approx(
        plain.peaks(placement, step_time_us, start_us, transfers))
  assert starts is None or starts == {name: dict(zip(names, start_us))[name] for name in starts}
  assert sent is None or sent == (in_order if isinstance(sent, list) else {
      f"{names[op]}:{port}" if port > 0 else names[op] + "~" * (port < 0): times
      for (op, port, _), times in transfers.items()})
  assert step_us in (None, step_time_us)
  assert peaks is None or peaks == result.peak_memory_bytes.tolist()
  assert jobs is None or jobs == list(zip(*(getattr(result.jobs, name).tolist() for name in (
      "packing", "devices", "start_us", "end_us"))))
  return result
