"""Fits the speeds of the presets' kernels to published measurements; compares presets with these.

  scripts/with_env python scripts/benchmarks/fit_presets.py --write

Prints the errors; with --write it writes placeto_tf/clusters/kernels.json. `reproduce.py
--page=predictions` makes the page's tables of this module's functions, that of several GPUs, too.

Kernels give each kind an efficiency and a start. Kernels of K80 are those of an M40, kernels of
Ampere and Ada cards those of an H100. Convolutions whose output has fewer than 2^18 elements
("few outputs") leave most of a card idle and are left out: training steps have hardly any. Whole
training steps then scale each card's kernels in three groups: convolutions of windows 3x3 and 5x5,
other convolutions and products, all other kernels. A scale is shrunk to the mean of the card's
family (`_FAMILIES`), and to 1 where there is none: whole steps of the H100 need no scale. How far
they are shrunk (`_WIDTHS`) is chosen by leaving out all steps of one model on one card in turn.

Hold-outs leave out all steps of a model on a card, of a card, or of a source, and choose how far
scales are shrunk without them, too.

Sources of the rows of docs/results/data/published.csv (values are us; of links, as stated):
  deepbench   baidu-research/DeepBench, results/train/*.xlsx at da81ba78 (cuDNN 5 to 7.6)
  tensorflow  TensorFlow's docs_src/performance/benchmarks.md of 2017 (tf_cnn_benchmarks)
  lambda      LambdaColdStorage/lambda-tensorflow-benchmark at e086e0e7 (tf_cnn_benchmarks)
  nvidia      NVIDIA/DeepLearningExamples at 729963dd, READMEs of ResNet-50 v1.5 and BERT
  dlperf      Oneflow-Inc/DLPerf at c89430ba (ResNet-50 v1.5)
  u39kun      u39kun/deep-learning-benchmark at 9dc3e36e
  pull_5518   github.com/tensorflow/models/pull/5518
  p2p         outputs of CUDA's p2pBandwidthLatencyTest and of NCCL's tests on GitHub
The kernels of the H100 are docs/results/data/h100_kernels.json (gpu_kernels.py).
"""

from __future__ import annotations

import collections
import functools
import json
import pathlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import pandas as pd
from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS
flags.DEFINE_string("records", "docs/results/data/published.csv", "The measurements.")
flags.DEFINE_string("kernels", "docs/results/data/h100_kernels.json", "Kernels of the H100.")
flags.DEFINE_bool("write", False, "Whether to write the presets' table.")

# Card of the kernels -> float32 and half precision peak in TFLOPS, and 10^9 bytes/s.
_PEAKS = {"m40": (6.84, 0.0, 288), "p100": (10.6, 0.0, 732), "v100": (15.67, 125.0, 900),
          "t4": (8.14, 65.0, 320), "h100": (494.5, 989.0, 3350)}
# Card -> the card of its kernels.
_KERNELS_OF = {"k80": "m40", "p100": "p100", "v100": "v100", "t4": "t4", "h100": "h100",
               "a100": "h100", "rtx3090": "h100", "rtxa6000": "h100"}
_SAME = {"a100_pcie": "a100"}
# Cards with DeepBench's kernels; Ampere cards whose float32 is as fast as TF32, or half as fast.
_FAMILIES = {"k80": 0, "p100": 0, "v100": 0, "t4": 0, "rtx3090": 1, "rtxa6000": 1}
# Model of the records -> spec.
_MODELS = {
    "vgg16": "vgg16:optimizer=sgd", "resnet50": "resnet50:optimizer=sgd",
    "resnet50_v1.5": "resnet50:optimizer=sgd", "resnet152": "resnet152:optimizer=sgd",
    "inception_v3": "inception_v3:optimizer=sgd", "alexnet": "alexnet:optimizer=sgd",
    "bert_base": "bert:optimizer=adam", "bert_large": "bert:size=large:optimizer=adam"}
# Widths of logarithms: of a card's scales around its family's, and of the families' around 0.
_WIDTHS = [(0.15, 0.3), (0.25, 0.3), (0.4, 0.3), (0.15, 0.6), (0.25, 0.6), (0.4, 0.6)]
_NOISE = 0.1  # the width of steps
_GRADIENTS = {"forward": "convolution", "input gradient": "gradient of the input",
              "filter gradient": "gradient of the filter"}
_LAUNCH_US = 5.7  # the least time of a kernel
_BATCHES = (32, 64)  # of the graphs; work of other batches is on the line through these
Table = Dict[str, Tuple[float, float]]  # kind of kernel -> efficiency, start in us


def fitted(times: Sequence[Tuple[float, float]], exponent: float) -> Tuple[float, float]:
  """Returns the efficiency and start that explain times of kernels.

  Args:
    times: (us at the peak, measured us).
    exponent: weights of kernels are their times to the power of it.

  Returns:
    The efficiency and the start, in us, of the least sum of errors of the logarithm.
  """
  peak_us, us = np.array(times).T
  efficiency, start_us = np.meshgrid(np.exp(np.arange(-2.5, 1.4, 0.02)), np.arange(0, 20.5))
  error = np.abs(np.log((peak_us[:, None, None] / efficiency + start_us) / us[:, None, None]))
  total = (error * us[:, None, None]**exponent).sum(axis=0)
  best = np.unravel_index(total.argmin(), efficiency.shape)
  return float(efficiency[best]), float(start_us[best])


def kernel_tables(records: pd.DataFrame, h100: Sequence[Mapping[str, Any]]) -> Dict[str, Table]:
  """Returns the tables of cards whose kernels were timed; "CARD half" for half precision."""
  from placeto_tf.ops import rule_of

  times: Dict[str, Dict[str, List[Tuple[float, float]]]] = collections.defaultdict(
      lambda: collections.defaultdict(list))
  kernels = records[(records["category"] == "kernel") & (records["note"] != "few outputs")]
  for row in kernels.to_dict("records"):
    half = row["precision"] == "mixed"
    kind = "product" if row["model"] == "gemm" else _GRADIENTS[row["mode"]]
    if row["model"] != "gemm" and row["size"] in ("1x1", "3x3", "5x5") and row["length"] == "1":
      kind += f" {row['size']}"
    peaks = _PEAKS[row["card"]]
    peak_us = (float(row["flops"]) / peaks[half] / 1e6
               + float(row["bytes"]) / (1 + half) / peaks[2] / 1e3)
    times[row["card"] + " half" * half][kind].append((peak_us, row["value"]))
  for row in h100:
    kind, peaks = rule_of(row["op"]).kind, _PEAKS["h100"]
    rows, columns = row["shapes"][1][:2] if row["op"].startswith("Conv") else (0, 1)
    if rows == columns and rows in rule_of(row["op"]).windows and row["strides"] == [1, 1]:
      kind += f" {rows}x{rows}"
    for half, column in enumerate(("tf32_us", "bfloat16_us")):
      if row.get(column):
        peak_us = row["flops"] / peaks[half * row["product"]] / 1e6 + (
            row["moved_bytes"] / (1 + half) / peaks[2] / 1e3)
        # Kernels other than products have one figure for both.
        times["h100" + " half" * (half and row["product"])][kind].append((peak_us, row[column]))
  # Whole steps are dominated by long kernels of these kinds.
  found = {card: {kind: fitted(each, 0.5 * (group(kind) < 2)) for kind, each in kinds.items()}
           for card, kinds in times.items()}
  # Timed lookups find the same rows again and again in the card's cache. TorchRec's planner counts
  # 897 GiB/s for random rows in an A100's memory, 0.62 of its bandwidth; TensorFlow also writes
  # them in order, at 0.94. An A100's other kernels are 1.04 times as efficient as an H100's.
  others = {kind: (0.72, each[1]) if kind == "lookup" else each
            for kind, each in found["h100"].items() if group(kind) == 2}
  return {card: {**table, **others} if "half" not in card else table
          for card, table in found.items()}


def group(kind: str) -> int:
  """Returns the group of a kind of kernel, whose scale is the same: 0, 1 or 2."""
  if kind.endswith(("3x3", "5x5")):
    return 0
  return 1 if kind.startswith(("convolution", "gradient of the", "product")) else 2


def _alexnet(batch: int) -> Any:
  """Builds the AlexNet of tf_cnn_benchmarks for the zoo."""
  import tensorflow as tf

  from placeto_tf.zoo import image_models, registry

  layers, v1 = image_models.legacy_keras().layers, tf.compat.v1
  x = images = v1.placeholder(tf.float32, [batch, 224, 224, 3], name="images")
  labels = v1.placeholder(tf.int32, [batch], name="labels")
  for filters, side, stride, pool in (
      (64, 11, 4, True), (192, 5, 1, True), (384, 3, 1, False), (384, 3, 1, False),
      (256, 3, 1, True)):
    x = layers.Conv2D(filters, side, stride, "valid" if stride > 1 else "same",
                      activation="relu")(x)
    x = layers.MaxPool2D(3, 2)(x) if pool else x
  x = layers.Flatten()(x)
  for _ in range(2):
    x = tf.nn.dropout(layers.Dense(4096, activation="relu")(x), rate=0.5)
  loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=layers.Dense(1000)(x)), name="loss")
  return registry.Model(loss, (images, labels))


def _spec(model: str, length: int = 128) -> str:
  """Returns the zoo's spec of a model of the records, without its batch."""
  from placeto_tf.zoo import image_models, registry

  if "vgg16" not in registry.names():
    registry.model("alexnet", batch=registry.integer(32))(_alexnet)
    for name, architecture in (("vgg16", "VGG16"), ("resnet152", "ResNet152")):
      registry.model(name, batch=registry.integer(32), image=registry.integer(224))(
          functools.partial(image_models._classifier, architecture))
  return f"zoo:{_MODELS[model]}" + f":steps={length}" * ("bert" in model)


@functools.cache
def kernels_of(model: str, length: int) -> pd.DataFrame:
  """Returns the kernels of a training step. Args: model, length: of records.

  Returns:
    Columns "kind", "runs", "product" and "update" of every op with a kernel; "flops" and "bytes"
    without examples, and of each example.
  """
  from placeto_tf import graphs
  from placeto_tf.costs.estimate import work_of
  from placeto_tf.graphs import CONTROL
  from placeto_tf.ops import rule_of

  spec = _spec(model, length)
  # Work is a line over the batch: weights are read once, whatever the batch.
  graph, larger = (graphs.load_graph(f"{spec}:batch={batch}") for batch in _BATCHES)
  work, more = work_of(graph), work_of(larger)
  found = pd.DataFrame({
      "kind": [(rule_of(op).kind or "element-wise") + (f" {side}x{side}" if side else "")
               for op, side in zip(graph.op_types, work.windows)],
      "runs": work.launches_on_gpu * work.executions, "product": work.product_types > 0,
      "update": ["Apply" in op for op in graph.op_types]})
  for name, low, high in (
      ("flops", work.flops, more.flops), ("bytes", work.moved_bytes, more.moved_bytes)):
    found[f"{name} of each"] = (high - low) / (_BATCHES[1] - _BATCHES[0])
    found[name] = low - _BATCHES[0] * found[f"{name} of each"]
  # The zoo's optimizers also run the gradient of the images, which published steps lack.
  used = np.isin(np.arange(graph.num_ops), graph.edge_producers[graph.edge_ports != CONTROL])
  found.loc[~used & (np.array(graph.op_types) == "Conv2DBackpropInput"), "runs"] = 0.0
  return found[found["runs"] > 0]


def step_us(row: Mapping[str, Any], table: Table, peaks: Tuple[float, float, float]) -> np.ndarray:
  """Returns the time of a training step on one card by group of kernels, [3].

  Args:
    row: of the records.
    table: of the card; of half precision, too, for a row of it.
    peaks: as in `_PEAKS`.
  """
  kernels = kernels_of(row["model"], int(row["length"] or 128))
  half, batch = row["precision"] == "mixed", float(row["size"])
  flops, moved_bytes = (
      kernels[name] + batch * kernels[f"{name} of each"] for name in ("flops", "bytes"))
  flops_per_us = np.where(half & kernels["product"], peaks[1], peaks[0]) * 1e6
  moved_bytes /= np.where(half & ~kernels["update"], 2, 1)
  efficiency, start_us = np.array([table[kind] for kind in kernels["kind"]]).T
  us = (flops / flops_per_us + moved_bytes / peaks[2] / 1e3) / efficiency
  us = kernels["runs"] * np.maximum(us + start_us, _LAUNCH_US)
  return np.bincount(kernels["kind"].map(group), us, minlength=3)


def scales_of(steps: pd.DataFrame, widths: Tuple[float, float]) -> pd.DataFrame:
  """Fits the scales of each card.

  Args:
    steps: columns "card", "model", 0, 1 and 2 (us by group, before scaling) and "value" (us).
    widths: one of `_WIDTHS`.

  Returns:
    [cards, 3] factors of efficiencies.
  """
  from scipy import optimize

  cards, (spread, mean) = list(_KERNELS_OF), widths
  # Unknowns: logarithms of two families' means [2, 3], then of scales [cards, 3].
  n = 6 + 3 * len(cards)
  prior = np.diag([1 / mean] * 6 + [1 / spread] * (n - 6))
  for i, card in enumerate(cards):
    if card in _FAMILIES:
      own, family = 6 + 3 * i + np.arange(3), 3 * _FAMILIES[card] + np.arange(3)
      prior[own, family] = -1 / spread
  us, measured_us = steps[[0, 1, 2]].to_numpy(), steps["value"].to_numpy()
  # [S, 3] the unknowns of each step; steps of one model on one card count as one.
  index = 6 + 3 * steps["card"].map(cards.index).to_numpy()[:, None] + np.arange(3)
  noise = _NOISE * steps.groupby(["card", "model"])["value"].transform("size").to_numpy()**0.5

  def errors(values: np.ndarray) -> np.ndarray:
    scaled_us = (us * np.exp(-values[index])).sum(axis=1)
    return np.append(prior @ values, np.log(scaled_us / measured_us) / noise)

  values = optimize.least_squares(errors, np.zeros(n)).x
  return pd.DataFrame(np.exp(values[6:].reshape(-1, 3)), index=cards)


def speeds(steps: pd.DataFrame, scales: pd.DataFrame) -> np.ndarray:
  """Returns simulated over measured speed. Args: steps, scales: as in `scales_of`."""
  us = steps[[0, 1, 2]].to_numpy() / scales.loc[steps["card"]].to_numpy()
  return steps["value"].to_numpy() / us.sum(axis=1)


def held_out(
    steps: pd.DataFrame, by: Sequence[str], widths: Optional[Tuple[float, float]] = None
) -> pd.Series:
  """Returns simulated over measured speed of steps that scales were fitted without.

  Args:
    steps: as in `scales_of`.
    by: columns; steps that are equal in these are left out together.
    widths: of scales; by default they are chosen without the steps, too.
  """
  found = pd.Series(0.0, index=steps.index)
  for _, left in steps.groupby(list(by)):
    others = steps.drop(left.index)
    found[left.index] = speeds(left, scales_of(others, widths or chosen(others)))
  return found


def chosen(steps: pd.DataFrame) -> Tuple[float, float]:
  """Returns the widths whose errors on models left out of a card are least."""
  by = [steps["card"], steps["model"]]
  return min(_WIDTHS, key=lambda widths: np.log(
      held_out(steps, ["card", "model"], widths)).abs().groupby(by).mean().mean())


def scaling(records: pd.DataFrame) -> pd.DataFrame:
  """Returns how many times as fast as one GPU several are, measured in one process.

  Args:
    records: all measurements.

  Returns:
    A row for each card, model, batch of a GPU ("size"), note and number of GPUs: "measured".
  """
  rows = records.query("category == 'step' and mode == 'training' and processes == 1")
  rows = rows[rows["precision"].isin(["fp32", "tf32"]) & rows["model"].isin(list(_MODELS))
              & ~rows["note"].str.contains("without TF32|real data|odd")]
  us = rows.pivot_table("value", ["card", "model", "size", "xla", "source", "note"], "gpus")
  times = us[[2, 4, 8]].rdiv(us[1], axis=0) * us.columns[us.columns.isin([2, 4, 8])]
  return times.stack().rename("measured").dropna().reset_index()


def data_parallel_us(card: str, model: str, size: int, gpus: int) -> float:
  """Returns the step of the baseline `data_parallel` of one process. Args: size: batch of a GPU."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.clusters.constraints import allowed_devices
  from placeto_tf.problem.candidates import fallback_devices
  from placeto_tf.replication import ReplicaSource, data_parallel, replicated_costs

  cluster = Cluster.parse(f"{card}:{gpus}")
  replicated = ReplicaSource(f"{_spec(model)}:batch={size * gpus}").replicas(
      gpus, False, cluster)
  allowed = allowed_devices(replicated.graph, cluster)
  hosts = np.where(allowed[:, 0], -1, fallback_devices(cluster, allowed)).astype(np.int64)
  return float(data_parallel(
      replicated, replicated_costs(replicated, cluster), cluster, range(gpus), hosts).step_time_us)


def compared(records: pd.DataFrame) -> Tuple[
    Dict[str, Table], pd.DataFrame, pd.DataFrame, pd.DataFrame]:
  """Fits, and compares with whole training steps. Args: records: all measurements.

  Returns:
    Tables of kernels before scaling, [cards, 3] scales, and simulated over measured speed of the
    steps in float32 (fitted, and without what is held out) and in half precision ("mixed").
  """
  from placeto_tf.clusters.presets import PRESETS
  from placeto_tf.costs.roofline import peak

  tables = kernel_tables(records, json.loads(pathlib.Path(FLAGS.kernels).read_text())["kernels"])
  rows = records.query("category == 'step' and gpus == 1 and mode == 'training'").replace(
      {"card": _SAME})
  rows = rows[~rows["note"].str.contains("without TF32|odd|no update")
              & rows["card"].isin(list(_KERNELS_OF)) & rows["model"].isin(list(_MODELS))]
  # Measurements of one step on several machines are one step.
  names = ["card", "model", "source", "size", "length", "precision", "xla"]
  rows = rows.groupby(names)["value"].agg(lambda us: float(np.exp(np.log(us).mean()))).reset_index()

  def groups_us(row: Mapping[str, Any]) -> np.ndarray:
    device, source = PRESETS[row["card"]].device, _KERNELS_OF[row["card"]]
    half = device.product_peaks.get("float16", {"flops_per_us": 0.0})["flops_per_us"]
    table = {**tables[source], **(tables[f"{source} half"] if row["precision"] == "mixed" else {})}
    return step_us(row, table, (
        peak(device).flops_per_us / 1e6, half / 1e6, peak(device).bytes_per_us / 1e3))

  steps = rows.join(pd.DataFrame([groups_us(row) for row in rows.to_dict("records")]))
  mixed = steps["precision"] == "mixed"
  steps, half_steps = steps[~mixed], steps[mixed]
  scales = scales_of(steps, chosen(steps))
  found = steps[names].assign(fitted=speeds(steps, scales), **{
      f"without its {' and '.join(by)}": held_out(steps, by)
      for by in (["model", "card"], ["card"], ["source"])})
  return tables, scales, found, half_steps[names].assign(mixed=speeds(half_steps, scales))


def main() -> None:
  """Prints errors, or writes the table."""
  entry_point.import_tensorflow_quietly()
  tables, scales, found, half_found = compared(pd.read_csv(FLAGS.records, keep_default_na=False))
  print(scales.round(2))
  print(f"{found.round(2).to_string()}\n{half_found.round(2).to_string()}")
  errors = {column: (table[column] - 1).abs() for table in (found, half_found)
            for column in table.columns[7:]}
  for column, error in errors.items():
    print(f"{column}: {(error <= 0.25).sum()} of {len(error)} steps within 25 %, "
          f"median error {error.median():.2f}")
  if FLAGS.write:
    left = errors["without its model and card"]
    written: Dict[str, Any] = {"held out": {
        card: [int((error <= 0.25).sum()), len(error)]
        for card, error in [("", left), *left.groupby(found["card"])]}}
    for card, source in _KERNELS_OF.items():
      written[card] = {
          precision: {kind: [round(efficiency * float(scales.loc[card, group(kind)]), 3), start_us]
                      for kind, (efficiency, start_us) in sorted(tables[name].items())}
          for precision, name in (("float32", source), ("half", f"{source} half"))
          if name in tables}
    pathlib.Path("placeto_tf/clusters/kernels.json").write_text("{" + ",\n ".join(
        f"{json.dumps(key)}: {json.dumps(value)}" for key, value in written.items()) + "}\n")


if __name__ == "__main__":
  entry_point.run_program(main)
