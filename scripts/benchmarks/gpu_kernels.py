"""Lists the dearest kernels of five models, and compares a preset with their times on a real GPU.

  scripts/with_env python scripts/benchmarks/gpu_kernels.py --kernels=kernels.json
  python scripts/benchmarks/time_kernels.py kernels.json measured.json   # where the GPU is
  scripts/with_env python scripts/benchmarks/gpu_kernels.py --measured=measured.json \\
      --preset=h100 --page=gpu_kernels.md

The first writes the dearest ops of each graph with the work that costs are estimated from; the last
writes a page: the preset's time over the measured one by kind of op, the share of the peak that
each kind reaches, and what a fit of the preset to half of the kernels says of the other half.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
import pandas as pd
from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS
flags.DEFINE_list("graphs", [
    f"zoo:{model}:batch={batch}" for model, batches in (
        ("inception_v3", (8, 64)), ("resnet50", (8, 64)), ("bert", (4, 32)), ("nmt", (16, 128)),
        ("rnnlm", (16, 128))) for batch in batches], "Graphs whose ops are listed.")
flags.DEFINE_integer("each", 8, "Kernels of each graph.", lower_bound=1)
flags.DEFINE_string("kernels", None, "The list that is written.")
flags.DEFINE_string("measured", None, "What time_kernels.py wrote.")
flags.DEFINE_string("preset", "h100", "The preset that is compared.")
flags.DEFINE_string("page", None, "The page that is written.")

# Op type -> the name under which it is timed.
_TIMED = {**{name: name for name in (
    "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "MatMul", "BatchMatMul", "Relu",
    "Softmax", "Tanh", "Sigmoid", "AddV2", "Mul", "MaxPool", "FusedBatchNorm")},
          "BatchMatMulV2": "BatchMatMul", "BatchMatMulV3": "BatchMatMul",
          "FusedBatchNormV2": "FusedBatchNorm", "FusedBatchNormV3": "FusedBatchNorm",
          "FusedBatchNormGradV2": "FusedBatchNormGrad",
          "FusedBatchNormGradV3": "FusedBatchNormGrad"}
# Op -> its kind, of which all have one efficiency and one start in the preset; else element-wise.
_KINDS = {"MatMul": "product", "BatchMatMul": "product", "Conv2D": "convolution",
          "Conv2DBackpropInput": "gradient of a convolution",
          "Conv2DBackpropFilter": "gradient of a convolution",
          "FusedBatchNorm": "batch norm", "FusedBatchNormGrad": "batch norm"}


def kernels_of(spec: str, most: int) -> List[Dict[str, Any]]:
  """Returns the kernels of a graph that take most of its step on an H100 by the estimate.

  Args:
    spec: of the graph.
    most: number of kernels.

  Returns:
    Rows as time_kernels.py reads them, with "graph", "count" (ops of this shape), "flops",
    "moved_bytes" and "product" (whether tensor cores do it).
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
    described = _describe(nodes[name], nodes, outputs)
    if described is None or not us[i]:
      continue
    row = found.setdefault(json.dumps(described), {
        **described, "graph": spec, "count": 0, "us": 0.0, "flops": float(work.flops[i]),
        "moved_bytes": float(work.moved_bytes[i]), "product": bool(work.product_types[i])})
    row["count"] += 1
    row["us"] += float(us[i])
  rows = sorted(found.values(), key=lambda row: -row.pop("us"))
  return rows[:most]


def _describe(
    node: Any, nodes: Mapping[str, Any], outputs: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
  """Returns an op's kernel without its name; None if it is not timed or a shape is not known."""
  op = _TIMED.get(node.op)
  if op is None:
    return None

  def shape(text: str) -> Optional[List[int]]:
    name, _, port = text.partition(":")
    known = outputs.get(name, ())
    if int(port or 0) >= len(known):
      return None
    sizes = [dim.size for dim in known[int(port or 0)].shape.dim]
    return sizes if min(sizes, default=1) > 0 else None

  inputs = [text for text in node.input if not text.startswith("^")]
  if op == "Conv2DBackpropInput":  # of sizes, filter, gradient: the input is what comes out
    shapes = [shape(node.name), shape(inputs[1])]
  elif op == "Conv2DBackpropFilter":  # of input, sizes, gradient: the filter is what comes out
    shapes = [shape(inputs[0]), shape(node.name)]
  elif op == "FusedBatchNormGrad":
    shapes = [shape(inputs[1])]
  else:
    shapes = [shape(text) for text in inputs[:2 if op in (
        "Conv2D", "MatMul", "BatchMatMul", "AddV2", "Mul") else 1]]
  if None in shapes or [] in shapes or op.startswith("Conv") and any(
      len(each) != 4 for each in shapes):  # type: ignore[arg-type]
    return None
  found = [list(each) for each in shapes]  # type: ignore[arg-type]
  for i, names in enumerate((("transpose_a", "adj_x"), ("transpose_b", "adj_y"))):
    if any(node.attr[name].b for name in names if name in node.attr):
      found[i][-2:] = found[i][:-3:-1]
  row: Dict[str, Any] = {"op": op, "shapes": found}
  if op.startswith("Conv"):
    if node.attr["data_format"].s not in (b"", b"NHWC"):
      return None
    row.update(strides=list(node.attr["strides"].list.i)[1:3],
               padding=node.attr["padding"].s.decode())
    if row["padding"] not in ("SAME", "VALID"):
      return None
  return row


def compare(measured: Mapping[str, Any], preset: str) -> pd.DataFrame:
  """Returns a row for each kernel and type of numbers that was measured.

  Args:
    measured: what time_kernels.py wrote.
    preset: name of a preset.

  Returns:
    Columns "op", "kind", "type", "size" (flops and bytes), "peak_us" (at the preset's peak),
    "preset_us" (with its efficiency and start), "plain_us" (with the efficiencies that it has for
    all ops), "measured_us", "ratio" (preset_us over measured_us) and "efficiency" (peak_us over
    measured_us).
  """
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs.roofline import peak

  device = next(each for each in Cluster.parse(f"{preset}:1").devices if not each.host)
  best, rows = peak(device), []
  for kernel in measured["kernels"]:
    # TensorFlow multiplies float32 in TF32; other ops are the same in both.
    for kind, column, size in (("float32", "tf32_us", 1.0), ("bfloat16", "bfloat16_us", 0.5)):
      if not kernel.get(column):
        continue
      fields = device.product_peaks.get(kind, {}) if kernel["product"] else {}
      plain = fields.get("efficiency", device.efficiency)
      efficiency = device.op_efficiency.get(kernel["op"], plain)
      peak_us = (kernel["flops"] / fields.get("flops_per_us", best.flops_per_us)
                 + size * kernel["moved_bytes"] / best.bytes_per_us)
      rows.append({
          "op": kernel["op"], "kind": _KINDS.get(kernel["op"], "element-wise"), "type": kind,
          "size": (kernel["flops"], kernel["moved_bytes"]), "peak_us": peak_us,
          "preset_us": peak_us / efficiency + device.op_start_us.get(kernel["op"], 0.0),
          "plain_us": peak_us / plain, "measured_us": kernel[column]})
  found = pd.DataFrame(rows)
  found["ratio"] = found["preset_us"] / found["measured_us"]
  found["efficiency"] = found["peak_us"] / found["measured_us"]
  return found


def fit(rows: pd.DataFrame) -> Tuple[float, float]:
  """Fits measured_us = peak_us / efficiency + start_us. Args: rows: of `compare`, of one kind.

  Returns:
    The efficiency and start_us of the least sum of errors of the logarithm, to two and one digits.
  """
  efficiency, start_us = np.meshgrid(np.arange(20, 101) / 100, np.arange(0, 151) / 10)
  # [rows, starts, efficiencies]
  found = rows["peak_us"].to_numpy()[:, None, None] / efficiency + start_us
  error = np.abs(np.log(found / rows["measured_us"].to_numpy()[:, None, None])).sum(axis=0)
  best = np.unravel_index(error.argmin(), error.shape)
  return float(efficiency[best]), float(start_us[best])


def fits(found: pd.DataFrame) -> pd.DataFrame:
  """Returns what a fit by kind of op says of kernels that it did not see.

  Args:
    found: of `compare`. Of each op's sizes in order, the first and the last of every four are one
      half, the second and the third the other; each half is predicted by the fit of the other.

  Returns:
    A row for each kind: kernels, the fit of all of them, and errors (shares) before and after.
  """
  rows = []
  for kind, members in (*found.groupby("kind"), ("all", found)):
    after = []
    for _, one in members.groupby("kind"):
      position = one.groupby("op")["size"].rank(method="dense").astype(int) - 1
      first = (position % 4).isin((0, 3))
      for known, other in ((one[first], one[~first]), (one[~first], one[first])):
        efficiency, start_us = fit(known)
        after.append(np.abs(
            (other["peak_us"] / efficiency + start_us) / other["measured_us"] - 1))
    errors = pd.concat(after)
    plain = np.abs(members["plain_us"] / members["measured_us"] - 1)
    fitted = fit(members) if kind != "all" else ("", "")
    rows.append({
        "kind of op": kind, "kernels": len(members), "efficiency": fitted[0],
        "start, us": fitted[1], "error before, median": plain.median(), "worst": plain.max(),
        "error on the other half, median": errors.median(), "its worst": errors.max()})
  return pd.DataFrame(rows).round(2)


def page(measured: Mapping[str, Any], preset: str) -> str:
  """Returns the page, in Markdown. Args: see `compare`."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.evaluation.tables import markdown

  found = compare(measured, preset)
  machine, cluster = measured["machine"], Cluster.parse(f"{preset}:1")
  graphs = sorted({f"`{kernel['graph']}`" for kernel in measured["kernels"]})

  grouped = found.groupby(["op", "type"])
  by_op = pd.DataFrame({
      "kernels": grouped.size(), "preset / measured, median": grouped["ratio"].median().round(2),
      "lowest": grouped["ratio"].min().round(2), "highest": grouped["ratio"].max().round(2),
      "share of the peak, median": grouped["efficiency"].median().round(2)}).reset_index()
  host, bandwidth = cluster.num_devices - 1, cluster.bandwidth_bytes_per_us
  parts: List[Tuple[str, str]] = [
      ("By kind of op", markdown(fits(found))),
      ("Kernels", markdown(by_op)),
      ("Launches and copies", markdown(pd.DataFrame([
          {"figure": "launch of an op, us", "preset": f"{cluster.op_overhead_us:g}",
           "measured": f"{machine['launch_us']:.1f} (PyTorch's)"},
          {"figure": "host to device, GB/s", "preset": f"{bandwidth[host, 0] / 1e3:.1f}",
           "measured": f"{machine['host_to_device'] / 1e3:.1f}"},
          {"figure": "device to host, GB/s", "preset": f"{bandwidth[0, host] / 1e3:.1f}",
           "measured": f"{machine['device_to_host'] / 1e3:.1f}"},
          {"figure": "on the device, GB/s (read and written)",
           "preset": f"{float(cluster.devices[0].properties['bandwidth']) / 1e6:,.0f}",
           "measured": f"{machine['on_device'] / 1e3:,.0f}"}])))]
  total = found["ratio"]
  return "\n".join([
      f"# `{preset}` beside a real {machine['name']}", "",
      *textwrap.wrap(
          f"{len(measured['kernels'])} kernels, the dearest of {', '.join(graphs)}, "
          f"timed alone by `scripts/benchmarks/time_kernels.py` (PyTorch {machine['torch']}, CUDA "
          f"{machine.get('cuda')}, cuDNN {machine.get('cudnn')}). \"Preset / measured\" is the "
          "estimated time over the measured one: above 1 the preset is slower than the card. The "
          f"median of all kernels is {total.median():.2f}; half of them lie between "
          f"{total.quantile(0.25):.2f} and {total.quantile(0.75):.2f}. The share of the peak is "
          "the efficiency that an estimate without a start would need; products of float32 are "
          "TF32. Launches are not part of these times.", 118), "",
      *textwrap.wrap(
          "\"By kind of op\" fits measured time = time at the peak / efficiency + start, which the "
          "preset has, to all kernels of a kind. \"Before\" has one efficiency and no start. For "
          "\"the other half\" each half of the sizes of an op was predicted by a fit of the other.",
          118), "",
      *(line for title, text in parts for line in (f"## {title}", "", text, "")),
      "```sh", *(__doc__ or "").split("\n\n")[1].replace("  scripts", "scripts").replace(
          "  python", "python").splitlines(), "```", ""])


def main() -> None:
  """Writes the list, or the page."""
  from placeto_tf.errors import PlacetoError

  entry_point.import_tensorflow_quietly()
  if FLAGS.kernels:
    rows: Dict[str, Dict[str, Any]] = {}
    for spec in FLAGS.graphs:
      for row in kernels_of(spec, FLAGS.each):
        key = json.dumps([row[name] for name in ("op", "shapes")] + [row.get("strides")])
        rows.setdefault(key, row)
    with open(FLAGS.kernels, "w", encoding="utf-8") as file:
      json.dump(list(rows.values()), file, indent=1)
    print(f"Done: {len(rows)} kernels in {FLAGS.kernels}.")
  elif FLAGS.measured and FLAGS.page:
    with open(FLAGS.measured, encoding="utf-8") as file:
      text = page(json.load(file), FLAGS.preset)
    with open(FLAGS.page, "w", encoding="utf-8") as file:
      file.write(text)
    print(text)
  else:
    raise PlacetoError("give --kernels=FILE, or --measured=FILE and --page=FILE")


if __name__ == "__main__":
  entry_point.run_program(main)
