"""Measures the whole command on graphs of any size: processor seconds and peak memory of place.py.

`reproduce.py --page=waiting` uses it. The graph is a spec, or a number of ops of a synthetic
CostGraphDef.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Dict

import numpy as np

_PLACE = pathlib.Path(__file__).resolve().parents[1] / "place.py"
_BRANCHES = 8  # of the synthetic graph
_CELL = 50  # ops of a branch in one cell


def synthetic_cost_graph(num_ops: int) -> Any:
  """Makes a chain of cells, each with parallel branches that end in one op, as in deep networks.

  Every op also reads an op of the previous cell, so there are about twice as many edges as ops.
  """
  from tensorflow.core.framework import cost_graph_pb2

  rng = np.random.default_rng(0)
  costs = rng.integers(0, 200, num_ops).tolist()
  sizes = (rng.integers(1, 1 << 16, num_ops) * 4).tolist()
  picks = rng.integers(0, _CELL * _BRANCHES, num_ops).tolist()
  proto = cost_graph_pb2.CostGraphDef()
  width = _CELL * _BRANCHES + 1  # with the op that reads all branches
  for i in range(num_ops):
    cell, place = divmod(i, width)
    node = proto.node.add(
        name=f"cell_{cell}/op_{place}", id=i, compute_cost=costs[i], is_final=i == num_ops - 1)
    node.output_info.add(size=sizes[i], alias_input_port=-1)
    first = cell * width
    if place == _CELL * _BRANCHES:  # reads the ends of all branches
      for branch in range(_BRANCHES):
        node.input_info.add(preceding_node=first + (branch + 1) * _CELL - 1)
      continue
    before = first - 1 if place % _CELL == 0 else i - 1
    if before >= 0:
      node.input_info.add(preceding_node=before)
    if cell:
      node.control_input.append(first - width + picks[i])
  return proto


def measured(graph: str, cluster: str, evaluations: int, out: str) -> Dict[str, Any]:
  """Places by `placeto` in a process of its own.

  Args:
    graph: a spec, or a number of ops.
    cluster: as for place.py.
    evaluations: placements that the policy evaluates.
    out: directory of the graph and the result.

  Returns:
    The result's report, with the processor seconds and peak memory of the process.
  """
  os.makedirs(out, exist_ok=True)
  if graph.isdecimal():
    path = pathlib.Path(out, "graph.cost_graph.pb")
    path.write_bytes(synthetic_cost_graph(int(graph)).SerializeToString())
    graph = str(path)
  placed = os.path.join(out, "placed")
  process = subprocess.Popen(
      [sys.executable, str(_PLACE), f"--graph={graph}", f"--cluster={cluster}", f"--out={placed}",
       "--method=placeto", f"--max_evaluations={evaluations}"], stdout=subprocess.DEVNULL)
  _, status, used = os.wait4(process.pid, 0)
  if status:
    raise subprocess.CalledProcessError(status, "place.py")
  report = json.loads(pathlib.Path(placed, "report.json").read_text(encoding="utf-8"))
  return {**report, "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024}
