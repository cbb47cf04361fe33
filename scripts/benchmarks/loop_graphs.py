"""Twelve graphs with loops, branches and shapes that inference does not know, as MetaGraphs.

  scripts/with_env python scripts/benchmarks/loop_graphs.py --out=runs/loop_graphs --measure \\
      --page=docs/results/predictions.md

All but the decoders and the detector are training steps, with gradients and an optimizer.
`measure.py` makes up the feeds. With --measure, each graph goes through a user's commands on two
workers of one core each: `calibrate.py`; `place.py` for one worker, for the human-expert baseline
and for `auto`; and `measure.py`. OUT/predictions.csv has a row for each placement; graphs in the
file are skipped, so that a stopped run continues. If a graph fails, its name is printed and the
next one follows. The machine must do no other work. --page is the page that gets the table of
measurements.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Callable, Dict, List

import pandas as pd
from absl import flags

from placeto_tf.errors import PlacetoError
from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_string("out", None, "Directory of the results: NAME.meta of each graph.",
                    required=True)
flags.DEFINE_bool("measure", False, "Whether to predict and to measure the steps of the graphs.")
flags.DEFINE_list("graphs", None, "Names of graphs; default: all.")
flags.DEFINE_string("page", None, "Markdown page; the table between its markers is replaced.")

_METHODS = ("single", "expert", "auto")
# Around the table in the page.
_BEGIN, _END = "<!-- loop_graphs.py: table -->", "<!-- loop_graphs.py: end -->"
_GRAPHS: Dict[str, Callable[[], Any]] = {}
_BATCH, _WORDS, _WIDTH, _VOCABULARY = 16, 20, 128, 2_000


def _graph(build: Callable[[], Any]) -> Callable[[], Any]:
  _GRAPHS[build.__name__] = build
  return build


def _feed(dtype: str, *shape: int) -> Any:
  import tensorflow as tf

  return tf.compat.v1.placeholder(dtype, shape)


def _weights(name: str, *shape: int) -> Any:
  import tensorflow as tf

  return tf.compat.v1.get_variable(name, shape, use_resource=True)


def _ids() -> Any:
  return _feed("int32", _BATCH, _WORDS)


def _embedded(ids: Any, name: str = "embedding") -> Any:
  import tensorflow as tf

  return tf.gather(_weights(name, _VOCABULARY, _WIDTH), ids)


class _Cell:
  """A GRU in the form that TensorFlow 1 takes."""

  output_size = state_size = _WIDTH

  def __init__(self, name: str, inputs: int = _WIDTH):
    self._gates = _weights(f"{name}/gates", inputs + _WIDTH, 2 * _WIDTH)
    self._candidate = _weights(f"{name}/candidate", inputs + _WIDTH, _WIDTH)

  def zero_state(self, batch_size: Any, dtype: Any) -> Any:
    """Returns [batch_size, width] zeros."""
    import tensorflow as tf

    return tf.zeros([batch_size, _WIDTH], dtype)

  def __call__(self, x: Any, state: Any, scope: Any = None) -> Any:
    """Returns the output and the new state, both [batch, width]."""
    import tensorflow as tf

    reset, update = tf.split(tf.sigmoid(tf.concat([x, state], 1) @ self._gates), 2, axis=1)
    new = tf.tanh(tf.concat([x, reset * state], 1) @ self._candidate)
    state = update * state + (1.0 - update) * new
    return state, state


def _encoded(lengths: bool = False) -> Any:
  """Returns the states [batch, words, width] and the last one of a recurrent encoder."""
  import tensorflow as tf

  counted = _feed("int32", _BATCH) * 7 + 6 if lengths else None
  return tf.compat.v1.nn.dynamic_rnn(
      _Cell("encoder"), _embedded(_ids()), counted, dtype=tf.float32)


def _word_loss(states: Any, ids: Any) -> Any:
  import tensorflow as tf

  logits = tf.tensordot(states, _weights("softmax", _WIDTH, _VOCABULARY), 1)
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits))


@_graph
def seq2seq() -> Any:
  """An encoder and a decoder by `dynamic_rnn`; sequences have lengths of their own."""
  import tensorflow as tf

  _, state = _encoded(lengths=True)
  states, _ = tf.compat.v1.nn.dynamic_rnn(
      _Cell("decoder"), _embedded(_ids(), "target"), initial_state=state)
  return _word_loss(states, _ids())


@_graph
def beam_search() -> Any:
  """Decoding with the four best continuations of each sequence, until all have ended."""
  import tensorflow as tf

  beams = 4
  _, state = _encoded()
  cell, table = _Cell("decoder"), _weights("target", _VOCABULARY, _WIDTH)
  softmax = _weights("softmax", _WIDTH, _VOCABULARY)

  def step(i: Any, state: Any, ids: Any, scores: Any, written: Any) -> Any:
    out, state = cell(tf.gather(table, tf.reshape(ids, [-1])), state)
    each = tf.reshape(tf.nn.log_softmax(out @ softmax), [_BATCH, beams, _VOCABULARY])
    scores, best = tf.math.top_k(
        tf.reshape(scores[..., None] + each, [_BATCH, -1]), beams)
    parents, ids = best // _VOCABULARY, best % _VOCABULARY
    rows = tf.reshape(parents + tf.range(_BATCH)[:, None] * beams, [-1])
    return i + 1, tf.gather(state, rows), ids, scores, written.write(i, ids)

  found = tf.while_loop(
      lambda i, state, ids, scores, written: (i < 60) & (tf.reduce_min(scores) > -180.0), step,
      (0, tf.repeat(state, beams, 0), tf.zeros([_BATCH, beams], tf.int32),
       tf.zeros([_BATCH, beams]),
       tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[_BATCH, beams])))
  return tf.reduce_sum(found[4].stack()) + tf.cast(tf.reduce_sum(found[3]), tf.int32)


@_graph
def attention_decoder() -> Any:
  """A decoder that attends to the encoder's states in every step of a loop."""
  import tensorflow as tf

  memory, state = _encoded()
  cell, target = _Cell("decoder", 2 * _WIDTH), _embedded(_ids(), "target")
  inputs = tf.TensorArray(tf.float32, _WORDS).unstack(tf.transpose(target, [1, 0, 2]))

  def step(i: Any, state: Any, written: Any) -> Any:
    weights = tf.nn.softmax(tf.einsum("btw,bw->bt", memory, state))
    context = tf.einsum("bt,btw->bw", weights, memory)
    out, state = cell(tf.concat([inputs.read(i), context], 1), state)
    return i + 1, state, written.write(i, out)

  _, _, written = tf.while_loop(
      lambda i, *_: i < tf.shape(target)[1], step, (0, state, tf.TensorArray(tf.float32, _WORDS)))
  return _word_loss(tf.transpose(written.stack(), [1, 0, 2]), _ids())


def _convolution(x: Any, name: str, channels: int, stride: int = 1) -> Any:
  import tensorflow as tf

  kernel = _weights(name, 3, 3, int(x.shape[-1]), channels)
  return tf.nn.relu(tf.nn.conv2d(x, kernel, stride, "SAME"))


@_graph
def detection() -> Any:
  """Images resized in a `map_fn`, boxes and scores by convolutions, the best without overlap."""
  import tensorflow as tf

  x = tf.map_fn(lambda image: tf.image.resize(image, [128, 128]), _feed("float32", 4, 200, 160, 3))
  for i, channels in enumerate((16, 32, 64)):
    x = _convolution(x, f"convolution_{i}", channels, 2)
  boxes = tf.reshape(tf.sigmoid(_convolution(x, "boxes", 16)), [4, -1, 4])
  scores = tf.reshape(tf.sigmoid(_convolution(x, "scores", 4)), [4, -1])

  def best(pair: Any) -> Any:
    found = tf.image.non_max_suppression(pair[0], pair[1], 50, 0.5, 0.45)
    kept = tf.gather(pair[0], found)
    return tf.reduce_sum(kept) + tf.reduce_sum(tf.matmul(kept, kept, transpose_b=True))

  return tf.reduce_sum(tf.map_fn(best, (boxes, scores), fn_output_signature=tf.float32))


@_graph
def ragged() -> Any:
  """Words of sequences of different lengths, without padding, and their mean by sequence."""
  import tensorflow as tf

  lengths = _feed("int32", 64) * 20 + 10
  ids = _feed("int32", 64, 30)
  words = tf.RaggedTensor.from_tensor(ids, lengths=lengths)
  x = tf.gather(_weights("embedding", _VOCABULARY, _WIDTH), words.flat_values)
  for i in range(3):
    x = tf.nn.relu(x @ _weights(f"dense_{i}", _WIDTH, 4 * _WIDTH))
    x = x @ _weights(f"projection_{i}", 4 * _WIDTH, _WIDTH)
  return tf.reduce_sum(tf.math.segment_mean(x, words.value_rowids()) ** 2)


@_graph
def bidirectional_lstm() -> Any:
  """Keras: a bidirectional LSTM whose steps are loops, forward and backward."""
  import tensorflow as tf

  x = tf.keras.layers.Embedding(_VOCABULARY, _WIDTH)(_ids())
  x = tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(_WIDTH, return_sequences=True))(x)
  x = tf.keras.layers.Dense(_VOCABULARY)(x)
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(_ids(), x))


@_graph
def gru() -> Any:
  """Two layers of recurrent cells by `dynamic_rnn`."""
  import tensorflow as tf

  states, _ = _encoded()
  states, _ = tf.compat.v1.nn.dynamic_rnn(_Cell("second"), states, dtype=tf.float32)
  return _word_loss(states, _ids())


@_graph
def transformer_decoder() -> Any:
  """Greedy decoding by a transformer of two layers that keeps its keys and values."""
  import tensorflow as tf

  layers, heads = 2, 4
  table = _weights("embedding", _VOCABULARY, _WIDTH)
  mixes = [[_weights(f"{i}/{name}", *shape) for name, shape in (
      ("qkv", (_WIDTH, 3 * _WIDTH)), ("out", (_WIDTH, _WIDTH)), ("in", (_WIDTH, 4 * _WIDTH)),
      ("back", (4 * _WIDTH, _WIDTH)))] for i in range(layers)]

  def step(i: Any, ids: Any, cache: Any) -> Any:
    x, kept = tf.gather(table, ids), []
    for (qkv, out, widen, narrow), past in zip(mixes, tf.unstack(cache)):
      query, key, value = tf.split(tf.reshape(x @ qkv, [_BATCH, 3, heads, -1]), 3, axis=1)
      past = tf.concat([past, tf.stack([key, value])], 2)  # [2, batch, words, heads, width]
      weights = tf.nn.softmax(tf.einsum("bqhw,bkhw->bhqk", query, past[0]))
      x += tf.reshape(tf.einsum("bhqk,bkhw->bqhw", weights, past[1]), [_BATCH, _WIDTH]) @ out
      x += tf.nn.relu(x @ widen) @ narrow
      kept.append(past)
    ids = tf.argmax(tf.matmul(x, table, transpose_b=True), 1, tf.int32)
    return i + 1, ids, tf.stack(kept)

  cache = tf.zeros([layers, 2, _BATCH, 0, heads, _WIDTH // heads])
  last = tf.while_loop(
      lambda i, *_: i < 30, step, (0, _feed("int32", _BATCH), cache), shape_invariants=(
          tf.TensorShape([]), tf.TensorShape([_BATCH]),
          tf.TensorShape([layers, 2, _BATCH, None, heads, _WIDTH // heads])))
  return tf.reduce_sum(last[1])


@_graph
def cond_batch_norm() -> Any:
  """Convolutions whose batch normalizations choose their statistics by a fed switch."""
  import tensorflow as tf

  training = tf.compat.v1.placeholder_with_default(True, [], name="training")
  x = _feed("float32", 8, 64, 64, 16)
  for i in range(4):
    x = _convolution(x, f"convolution_{i}", 32)
    mean, variance = tf.cond(
        training, lambda x=x: tf.nn.moments(x, [0, 1, 2]),
        lambda: (tf.zeros([32]), tf.ones([32])))
    x = tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)
  return tf.reduce_mean(x ** 2)


@_graph
def tensor_array_pooling() -> Any:
  """Windows of a sequence, pooled one after the other into a list that grows."""
  import tensorflow as tf

  x = tf.tensordot(_feed("float32", _BATCH, 96, _WIDTH), _weights("dense", _WIDTH, _WIDTH), 1)

  def step(i: Any, written: Any) -> Any:
    window = tf.tanh(x[:, 4 * i:4 * i + 8] @ _weights("window", _WIDTH, _WIDTH))
    return i + 1, written.write(i, tf.reduce_max(window, 1))

  with tf.compat.v1.variable_scope("pooling", reuse=tf.compat.v1.AUTO_REUSE):
    _, written = tf.while_loop(
        lambda i, _: 4 * i + 8 <= tf.shape(x)[1], step,
        (0, tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[_BATCH, _WIDTH])))
  return tf.reduce_mean(written.stack() ** 2)


@_graph
def fcn() -> Any:
  """A fully convolutional network: scores are resized to the image, and flattened for the loss."""
  import tensorflow as tf

  image, classes = _feed("float32", 2, 96, 96, 3), 8
  x = image
  for i, channels in enumerate((16, 32, 64)):
    x = _convolution(x, f"convolution_{i}", channels, 2)
  x = tf.compat.v1.image.resize_bilinear(x, tf.shape(image)[1:3])
  logits = tf.nn.conv2d(x, _weights("scores", 1, 1, 64, classes), 1, "SAME")
  flat = tf.reshape(logits, tf.concat([[-1], tf.shape(logits)[-1:]], 0))
  labels = tf.reshape(_feed("int32", 2, 96, 96), [-1])
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, flat))


@_graph
def nested_loops() -> Any:
  """Iterations of a fixed point, until it is near, for each of several blocks."""
  import tensorflow as tf

  mix = _weights("mix", _WIDTH, _WIDTH)

  def solve(x: Any) -> Any:
    inner = tf.while_loop(
        lambda j, a, change: (j < 40) & (change > 0.02),
        lambda j, a, _: (lambda new: (j + 1, new, tf.reduce_max(tf.abs(new - a))))(
            tf.tanh(0.5 * (a @ mix) + x)), (0, x, tf.constant(1.0)))
    return inner[1]

  found = tf.while_loop(
      lambda i, _: i < 8, lambda i, a: (i + 1, solve(a)), (0, _feed("float32", 64, _WIDTH)))
  return tf.reduce_mean(found[1] ** 2)


_DECODING = ("beam_search", "detection", "transformer_decoder")


def write(name: str, folder: str) -> str:
  """Builds a graph, with a training step unless it only decodes, and writes it.

  Args:
    name: of the graph.
    folder: to write to.

  Returns:
    The path of the MetaGraphDef, whose collection train_op names the step.
  """
  import tensorflow as tf

  v1 = tf.compat.v1
  v1.disable_control_flow_v2()
  with tf.Graph().as_default():
    with v1.variable_scope(name):
      loss = _GRAPHS[name]()
      step = loss.op if name in _DECODING else (
          v1.train.GradientDescentOptimizer(0.01).minimize(loss))
    v1.add_to_collection("train_op", step)
    path = os.path.join(folder, f"{name}.meta")
    v1.train.export_meta_graph(path, clear_devices=True)
  return path


def predicted_and_measured(path: str) -> List[Dict[str, Any]]:
  """Runs the user's commands on a graph.

  Args:
    path: of its MetaGraphDef; results go into a folder beside it.

  Returns:
    A row for each placement: graph, placement, predicted_us, measured_us, error (a share).
  """
  folder = path[:-len(".meta")]
  graph, workers, calibrated = f"--graph={path}", "--workers=local:2", f"{folder}/calibrated"
  _wait(_program("calibrate", graph, "--cluster=cpu:2", workers, "--runs=10", "--graph_runs=8",
                 f"--out={calibrated}"))
  known = [graph, f"--cluster={calibrated}/cluster.json", f"--cost_model={calibrated}/costs.pb"]
  # Nothing is measured by now, so the placements are made side by side.
  for placing in [_program("place", *known, f"--method={method}", "--max_evaluations=300",
                           f"--out={folder}/{method}") for method in _METHODS]:
    _wait(placing)
  placements = ",".join(f"{folder}/{method}/placement.json" for method in _METHODS)
  lines = _wait(_program(
      "measure", *known, workers, f"--placement={placements}", "--max_seconds=15"))
  found = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
  return [{"graph": os.path.basename(folder), "placement": method,
           "predicted_us": each["predicted_us"], "measured_us": each["measured_us"],
           "error": abs(each["predicted_us"] / each["measured_us"] - 1)}
          for method, each in zip(_METHODS, found) if each["measured_us"]]


def _program(name: str, *arguments: str) -> subprocess.Popen:
  """Starts a program of the package."""
  path = pathlib.Path(__file__).resolve().parents[1] / f"{name}.py"
  return subprocess.Popen(
      [sys.executable, str(path), *arguments], stdout=subprocess.PIPE, text=True)


def _wait(program: subprocess.Popen) -> str:
  """Returns the output of a program. Raises CalledProcessError where it failed."""
  found, _ = program.communicate()
  if program.returncode:
    raise subprocess.CalledProcessError(program.returncode, program.args)
  return found


def table(rows: pd.DataFrame) -> str:
  """Returns the table of the page and a sentence on it. Args: rows: of predictions.csv."""
  from placeto_tf.evaluation.tables import markdown

  errors = rows["error"]
  # A row for each graph: of each placement the predicted and the measured step, in ms.
  cells = (rows["predicted_us"] / 1e3).map("{:.2f}, ".format) + (
      rows["measured_us"] / 1e3).map("{:.2f}".format)
  wide = rows.assign(cells=cells).pivot(index="graph", columns="placement", values="cells")[
      list(_METHODS)].add_suffix(": predicted, measured, ms")
  wide["largest error"] = errors.groupby(rows["graph"]).max().map("{:.0%}".format)
  return (f"\n{markdown(wide.reset_index())}\n\nMedian error {errors.median():.1%}, largest "
          f"{errors.max():.1%}, of {len(rows)} placements.\n\n")


def with_table(page: str, found: str) -> str:
  """Replaces the table between the markers of a page, which may stand on one line.

  Args:
    page: Markdown.
    found: the new table.

  Returns:
    The page with it.

  Raises:
    PlacetoError: the page lacks a marker.
  """
  before, begin, rest = page.partition(_BEGIN)
  _, end, after = rest.partition(_END)
  if not begin or not end:
    raise PlacetoError(f"the page has no place for the table; write {_BEGIN} and {_END} into it")
  return f"{before}{begin}\n{found}{end}{after}"


def main() -> None:
  """Writes the graphs, measures them and writes the table where that is asked for."""
  os.makedirs(FLAGS.out, exist_ok=True)
  results = os.path.join(FLAGS.out, "predictions.csv")
  done = set(pd.read_csv(results)["graph"]) if os.path.exists(results) else set()
  for name in FLAGS.graphs or _GRAPHS:
    path = write(name, FLAGS.out)
    if FLAGS.measure and name not in done:
      try:
        rows = pd.DataFrame(predicted_and_measured(path))
      except subprocess.CalledProcessError as error:
        print(f"{name}: {' '.join(error.cmd[1:3])} ... ended with {error.returncode}", flush=True)
        continue
      rows.to_csv(results, mode="a", header=not os.path.exists(results), index=False)
      print(rows.round(3).to_string(index=False), flush=True)
  if FLAGS.page:
    page = pathlib.Path(FLAGS.page)
    page.write_text(
        with_table(page.read_text(encoding="utf-8"), table(pd.read_csv(results))), encoding="utf-8")


if __name__ == "__main__":
  entry_point.run_program(main)
