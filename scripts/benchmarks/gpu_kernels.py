"""Lists kernels of the zoo's models, and compares a preset with their times on a real GPU.

  scripts/with_env python scripts/benchmarks/gpu_kernels.py --list=kernels.json
  python scripts/benchmarks/time_kernels.py kernels.json measured.json   # where the GPU is

The first writes kernels of all sizes for each type of op, with the work that costs are estimated
from. `compare` and `whole_steps` hold a preset against what was measured, for `reproduce.py
--page=predictions`; the fit of the preset, by kind of kernel, is fit_presets.py's.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import pandas as pd
from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS
flags.DEFINE_list("graphs", [
    "zoo:wavenet", "zoo:transformer_xl", "zoo:amoebanet", "zoo:bert:batch=32:optimizer=adam",
    "zoo:bert:batch=4:dropout=10", *(
        f"zoo:{model}:batch={batch}" for model, batches in (
            ("inception_v3", (8, 64)), ("resnet50", (8, 64)), ("nmt", (16, 128)),
            ("rnnlm", (16, 128))) for batch in batches)], "Graphs whose ops are listed.")
flags.DEFINE_integer("each", 4, "Kernels of each type of op, and of each window and strides.",
                     lower_bound=1)
flags.DEFINE_string("list", "kernels.json", "The list that is written.")

_OUT, _ALL = -1, -2
# Op without its version -> the inputs, or the output, that make up its kernel.
_TENSORS = {op: tensors for tensors, ops in {
    (): "Fill RandomUniform", (_ALL,): "AddN Concat", (_OUT,): "AvgPoolGrad",
    (_OUT, 1): "Conv2DBackpropInput", (0, _OUT): "Conv2DBackpropFilter", (0, 1, 2): "Select",
    (0, 1): """MatMul BatchMatMul Conv2D Add Sub Mul RealDiv Greater Pow BiasAdd ReluGrad TanhGrad
               SigmoidGrad""",
    (0,): """Relu Softmax Tanh Sigmoid Neg Log L2Loss BiasAddGrad MaxPool AvgPool MaxPoolGrad
             FusedBatchNorm Slice StridedSlice Pad Tile Transpose Sum Mean ResourceGather Gather
             SparseSoftmaxCrossEntropyWithLogits""",
    (1,): "FusedBatchNormGrad Split", (3,): "ResourceApplyMomentum", (4,): "StridedSliceGrad",
    (9,): "ResourceApplyAdam", (0, 3): "ResourceSparseApplyMomentum"}.items() for op in ops.split()}
_SAME_RANK = ("Slice", "StridedSlice", "StridedSliceGrad", "Pad", "Tile", "Split", "Concat")


def kernels_of(spec: str) -> List[Dict[str, Any]]:
  """Returns the kernels of a graph that can be timed.

  Args:
    spec: of the graph.

  Returns:
    Rows as time_kernels.py reads them, with "graph", "count" (ops of this shape), "us" (of an op,
    on an H100 by the estimate), "flops", "moved_bytes" and "product" (whether tensor cores do it).
  """
  from placeto_tf import graphs
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs.estimate import from_work, work_of
  from placeto_tf.costs.guarded import analyse

  graph = graphs.load_graph(spec)
  graph_def = graphs.analysis_graph_def(graph)
  outputs, work = analyse(graph_def, counts=False).outputs, work_of(graph)
  us = from_work(graph, Cluster.parse("h100:1"), work).compute_us[:, 0]
  nodes = {node.name: node for node in graph_def.node}
  found: Dict[str, Dict[str, Any]] = {}
  for i, name in enumerate(graph.op_names):
    described = _describe(nodes[name], nodes, outputs) if us[i] else None
    if described is not None:
      found.setdefault(json.dumps(described), {
          **described, "graph": spec, "count": 0, "us": float(us[i]),
          "flops": float(work.flops[i]), "moved_bytes": float(work.moved_bytes[i]),
          "product": bool(work.product_types[i])})["count"] += 1
  return list(found.values())


def _describe(
    node: Any, nodes: Mapping[str, Any], outputs: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
  """Returns an op's kernel without its name; None if it is not timed or a shape is not known."""
  op = re.sub(r"V\d$", "", node.op)
  inputs = [text for text in node.input if not text.startswith("^")]

  def shape(text: str) -> List[int]:
    name, _, port = text.partition(":")
    if name in nodes and "shape" in nodes[name].attr and nodes[name].op == "VarHandleOp":
      return [dim.size for dim in nodes[name].attr["shape"].shape.dim]
    return [dim.size for dim in outputs[name][int(port or 0)].shape.dim]

  result = outputs.get(node.name, ())
  if op not in _TENSORS or result and result[0].dtype not in (1, 10):  # float32, bool
    return None
  if op == "Concat":
    inputs = inputs[:-1]  # the last is the axis
  if op == "AddN" and len(inputs) != 2:
    return None
  tensors = _TENSORS[op] if _TENSORS[op] != (_ALL,) else range(len(inputs))
  out = shape(node.name) if result else []
  shapes = [out if i == _OUT else shape(inputs[i]) for i in tensors]
  if min((size for each in [*shapes, out] for size in each), default=1) <= 0 or (
      op in _SAME_RANK and len(shapes[0]) != len(out)) or (
          op.endswith("Gather") and len(shapes[0]) != 2):  # of rows, not of batches
    return None
  for i, names in enumerate((("transpose_a", "adj_x"), ("transpose_b", "adj_y"))):
    if any(node.attr[name].b for name in names if name in node.attr):
      shapes[i][-2:] = shapes[i][:-3:-1]
  row: Dict[str, Any] = {"op": op, "shapes": shapes, "out": out}
  if node.attr["data_format"].s not in (b"", b"NHWC"):
    return None
  if op.startswith(("Conv2D", "MaxPool", "AvgPool")):
    row.update(strides=list(node.attr["strides"].list.i)[1:3],
               window=shapes[1][:2] if len(shapes) > 1 else list(node.attr["ksize"].list.i)[1:3],
               padding=node.attr["padding"].s.decode())
    if row["padding"] not in ("SAME", "VALID"):
      return None
  return row


def chosen(rows: Sequence[Mapping[str, Any]], each: int) -> List[Mapping[str, Any]]:
  """Returns kernels of all sizes, for every type of op, window and strides.

  Args:
    rows: of `kernels_of`, of all graphs.
    each: number of kernels of one type, window and strides, twice as many of more than 20, evenly
      spread over the estimated times of those above 1 us; the dearest if none is.

  Returns:
    The rows, the dearest of each type first.
  """
  groups: Dict[str, Dict[str, Mapping[str, Any]]] = {}
  for row in rows:
    own = groups.setdefault(f"{row['op']} {row.get('window')} {row.get('strides')}", {})
    own.setdefault(json.dumps([row["shapes"], row["out"]]), row)
  found = []
  for group in groups.values():
    ordered = sorted(group.values(), key=lambda row: -row["us"])
    ordered = [row for row in ordered if row["us"] >= 1] or ordered[:1]
    count = min(each * (1 + (len(ordered) > 20)), len(ordered))
    places = np.linspace(0, len(ordered) - 1, count).astype(int)
    found += [(i, ordered[place]) for i, place in enumerate(places)]
  return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def compare(measured: Mapping[str, Any], preset: str) -> pd.DataFrame:
  """Returns a row for each kernel and type of numbers that was measured.

  Args:
    measured: what time_kernels.py wrote.
    preset: name of a preset.

  Returns:
    Columns "op", "type", "peak_us" (at the preset's peak), "preset_us" (with its efficiency and
    start), "measured_us", "ratio" (preset_us over measured_us) and "efficiency" (peak_us over
    measured_us).
  """
  from placeto_tf.clusters import Cluster
  from placeto_tf.clusters.device import PRODUCT_TYPES
  from placeto_tf.costs.estimate import figure, kernel_names
  from placeto_tf.costs.roofline import peak
  from placeto_tf.ops import rule_of

  device = next(each for each in Cluster.parse(f"{preset}:1").devices if not each.host)
  best, rows = peak(device), []
  for kernel in measured["kernels"]:
    # TensorFlow multiplies float32 in TF32; other ops are the same in both.
    for kind, column, size in (("float32", "tf32_us", 1.0), ("bfloat16", "bfloat16_us", 0.5)):
      if not kernel.get(column):
        continue
      fields = device.product_peaks.get(kind, {}) if kernel["product"] else {}
      plain = fields.get("efficiency", device.efficiency)
      sides = kernel["shapes"][1][:2] if kernel["op"].startswith("Conv2D") else (0, 1)
      names = kernel_names(
          kernel["op"], sides[0] * (sides[0] == sides[1] and kernel["strides"] == [1, 1]
                                    and sides[0] in rule_of(kernel["op"]).windows),
          PRODUCT_TYPES[kind] * kernel["product"])
      efficiency = figure(device.op_efficiency, names, plain)
      peak_us = (kernel["flops"] / fields.get("flops_per_us", best.flops_per_us)
                 + size * kernel["moved_bytes"] / best.bytes_per_us)
      rows.append({
          "op": kernel["op"], "type": kind, "peak_us": peak_us,
          "preset_us": peak_us / efficiency + figure(device.op_start_us, names, 0.0),
          "measured_us": kernel[column]})
  found = pd.DataFrame(rows)
  found["ratio"] = found["preset_us"] / found["measured_us"]
  found["efficiency"] = found["peak_us"] / found["measured_us"]
  return found


def whole_steps(steps: Sequence[Mapping[str, Any]], preset: str) -> pd.DataFrame:
  """Returns a row for each training step that was measured, beside the zoo's graph of its model.

  Args:
    steps: {"graph", "kernels", "busy_us": sum of the times of all kernels, "wall_us"}, of one step;
      a graph that is not the zoo's has no estimate and is left out.
    preset: name of a preset.

  Returns:
    Kernels, and the time in which one runs, of the graph by the estimate and of PyTorch.
  """
  from placeto_tf import graphs
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs.estimate import from_work, work_of
  from placeto_tf.costs.op_costs import launches_between_us

  cluster, rows = Cluster.parse(f"{preset}:1"), []
  for step in steps:
    if not step["graph"].startswith("zoo:"):
      continue
    graph = graphs.load_graph(step["graph"])
    work = work_of(graph)
    us = from_work(graph, cluster, work).compute_us
    busy_us = (us - launches_between_us(
        us, work.executions[:, None], cluster, cluster.first_of_kind))[:, 0].sum()
    rows.append({
        "graph": f"`{step['graph']}`", "kernels": int(work.executions[us[:, 0] > 0].sum()),
        "kernels of PyTorch": round(step["kernels"]), "estimated, ms": busy_us / 1e3,
        "measured, ms": step["busy_us"] / 1e3, "estimated / measured": busy_us / step["busy_us"],
        "whole step by the clock, ms": step["wall_us"] / 1e3})
  return pd.DataFrame(rows).round(2)


def main() -> None:
  """Writes the list."""
  entry_point.import_tensorflow_quietly()
  rows = chosen([row for spec in FLAGS.graphs for row in kernels_of(spec)], FLAGS.each)
  with open(FLAGS.list, "w", encoding="utf-8") as file:
    json.dump(rows, file, indent=1)
  print(f"Done: {len(rows)} kernels in {FLAGS.list}.")


if __name__ == "__main__":
  entry_point.run_program(main)
