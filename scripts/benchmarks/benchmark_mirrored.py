"""Times steps on two real workers: one worker alone, placements on both, MirroredStrategy on both.

  scripts/with_env python scripts/benchmarks/benchmark_mirrored.py --out=runs/mirrored

There are five training graphs with SGD with momentum, and two workers of one core each. The graph
is calibrated and placed, first by simulated and then by measured times, in three strategies: as one
replica, as two replicas with shared variables, and as two with mirrored variables. The three
placements and one worker run some steps in turn to find the fastest. The fastest is then timed
against one worker and against `tf.distribute.MultiWorkerMirroredStrategy` with two processes of one
core each at the same global batch; all run some steps in turn, under the same conditions.
OUT/rows.jsonl has one JSON line per model; models in the file are not timed again. The machine must
do no other work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_string("out", None, "Directory of the results; an interrupted run continues in it.")
flags.DEFINE_list("models", ["towers", "perceptron", "convolutions", "lstm", "transformer"],
                  "Models to time.")
flags.DEFINE_integer("rounds", 6, "Turns of each way to run.", lower_bound=2)
flags.DEFINE_integer("steps", 8, "Steps of a turn.", lower_bound=1)
flags.DEFINE_float("search_seconds", 15.0, "Seconds of each simulated search.", lower_bound=1.0)
flags.DEFINE_integer("measurements", 10, "Placements measured for each replication strategy.",
                     lower_bound=1)
flags.DEFINE_string("mirrored", None, "Used by the program itself: MODEL of a mirrored process.")

_WORKERS = 2
_TRIALS = 3  # turns that decide between placements
_LEARNING_RATE, _MOMENTUM = 1e-4, 0.9

# (name, shape) -> a float variable, the same one for the same name.
Variables = Callable[[str, Tuple[int, ...]], Any]


@dataclasses.dataclass(frozen=True)
class Model:
  """A model: its global batch, its feeds and its loss.

  Attributes:
    batch: examples of a step.
    feeds: name -> (shape of an example, most of a whole number or 0 for floats).
    loss: (variables, feeds) -> mean loss of the examples.
  """

  batch: int
  feeds: Dict[str, Tuple[Tuple[int, ...], int]]
  loss: Callable[[Variables, Dict[str, Any]], Any]

  def values(self, batch: int) -> Dict[str, np.ndarray]:
    """Random examples."""
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, most, (batch, *shape)).astype(np.int32) if most else
        rng.random((batch, *shape), dtype=np.float32)
        for name, (shape, most) in self.feeds.items()}


def _dense(variables: Variables, name: str, x: Any, units: int) -> Any:
  import tensorflow as tf

  return tf.matmul(x, variables(name, (int(x.shape[-1]), units)))


def _towers(variables: Variables, feeds: Dict[str, Any]) -> Any:
  """Dense towers of different depth and width over one input."""
  import tensorflow as tf

  outputs = []
  for t, (width, depth) in enumerate(
      [(768, 4), (896, 3), (512, 5), (1024, 2), (640, 4), (768, 3)]):
    x = feeds["x"]
    for k in range(depth):
      x = tf.nn.relu(_dense(variables, f"tower_{t}_{k}", x, width))
    outputs.append(_dense(variables, f"tower_{t}_out", x, 16))
  return tf.reduce_mean(tf.math.squared_difference(tf.add_n(outputs), feeds["y"]))


def _perceptron(variables: Variables, feeds: Dict[str, Any]) -> Any:
  """Six layers of 1,024."""
  import tensorflow as tf

  x = feeds["x"]
  for k in range(6):
    x = tf.nn.relu(_dense(variables, f"layer_{k}", x, 1024))
  return tf.reduce_mean(tf.math.squared_difference(
      _dense(variables, "out", x, 16), feeds["y"]))


def _convolutions(variables: Variables, feeds: Dict[str, Any]) -> Any:
  """Residual blocks of 3 x 3 convolutions at three resolutions."""
  import tensorflow as tf

  x = feeds["x"]
  for stage, channels in enumerate((32, 64, 128)):
    shape = (3, 3, int(x.shape[-1]), channels)
    x = tf.nn.relu(tf.nn.conv2d(x, variables(f"down_{stage}", shape), 2, "SAME"))
    for k in range(2):
      same = (3, 3, channels, channels)
      inner = tf.nn.relu(tf.nn.conv2d(x, variables(f"conv_{stage}_{k}a", same), 1, "SAME"))
      x = tf.nn.relu(x + tf.nn.conv2d(
          inner, variables(f"conv_{stage}_{k}b", same), 1, "SAME"))
  logits = _dense(variables, "out", tf.reduce_mean(x, [1, 2]), 100)
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(feeds["label"], logits))


def _lstm(variables: Variables, feeds: Dict[str, Any]) -> Any:
  """Two LSTM layers of 256 over 16 words of 8,000, each word's successor predicted."""
  import tensorflow as tf

  words, units, steps = 8000, 256, 16
  inputs = tf.unstack(
      tf.nn.embedding_lookup(variables("embedding", (words, units)), feeds["word"]), steps, axis=1)
  for layer in range(2):
    h = c = tf.zeros_like(inputs[0])
    outputs = []
    for x in inputs:
      i, f, o, g = tf.split(
          _dense(variables, f"lstm_{layer}", tf.concat([x, h], 1), 4 * units), 4, axis=1)
      c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
      h = tf.sigmoid(o) * tf.tanh(c)
      outputs.append(h)
    inputs = outputs
  logits = [_dense(variables, "softmax", h, words) for h in inputs]
  return tf.reduce_mean(tf.add_n([
      tf.nn.sparse_softmax_cross_entropy_with_logits(label, each) for label, each in zip(
          tf.unstack(feeds["next"], steps, axis=1), logits)]))


def _transformer(variables: Variables, feeds: Dict[str, Any]) -> Any:
  """Three layers of attention with four heads, width 256, over 64 words of 2,000."""
  import tensorflow as tf

  words, width, heads, steps = 2000, 256, 4, 64
  x = tf.reshape(
      tf.nn.embedding_lookup(variables("embedding", (words, width)), feeds["word"]), [-1, width])

  def split(each: Any) -> Any:
    return tf.transpose(tf.reshape(each, [-1, steps, heads, width // heads]), [0, 2, 1, 3])

  for layer in range(3):
    q, k, v = [split(_dense(variables, f"{kind}_{layer}", x, width)) for kind in "qkv"]
    weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5)
    mixed = tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [-1, width])
    x += _dense(variables, f"mixed_{layer}", mixed, width)
    inner = tf.nn.relu(_dense(variables, f"inner_{layer}", x, 4 * width))
    x += _dense(variables, f"outer_{layer}", inner, width)
  labels = tf.reshape(feeds["next"], [-1])
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels, _dense(variables, "softmax", x, words)))


MODELS = {
    "towers": Model(256, {"x": ((512,), 0), "y": ((16,), 0)}, _towers),
    "perceptron": Model(512, {"x": ((1024,), 0), "y": ((16,), 0)}, _perceptron),
    "convolutions": Model(32, {"x": ((64, 64, 3), 0), "label": ((), 100)}, _convolutions),
    "lstm": Model(32, {"word": ((16,), 8000), "next": ((16,), 8000)}, _lstm),
    "transformer": Model(16, {"word": ((64,), 2000), "next": ((64,), 2000)}, _transformer),
}


def _scale(shape: Tuple[int, ...]) -> float:
  """Returns the deviation of initial weights."""
  return float(np.prod(shape[:-1])) ** -0.5


def _initial(shape: Tuple[int, ...], number: int) -> np.ndarray:
  return (np.random.default_rng(number).standard_normal(shape) * _scale(shape)).astype(np.float32)


def write_graph(model: Model, path: str) -> None:
  """The training step as a MetaGraph with a free batch."""
  import tensorflow as tf

  v1 = tf.compat.v1
  made: Dict[str, Any] = {}

  def variables(name: str, shape: Tuple[int, ...]) -> Any:
    if name not in made:
      made[name] = v1.get_variable(
          name, shape, use_resource=True,
          initializer=v1.random_normal_initializer(0.0, _scale(shape), seed=len(made)))
    return made[name]

  with tf.Graph().as_default():
    feeds = {
        name: v1.placeholder(tf.int32 if most else tf.float32, [None, *shape], name=name)
        for name, (shape, most) in model.feeds.items()}
    loss = model.loss(variables, feeds)
    train = v1.train.MomentumOptimizer(_LEARNING_RATE, _MOMENTUM).minimize(loss, name="train")
    v1.add_to_collection("train_op", train)
    v1.train.export_meta_graph(path)


def run_mirrored(model: Model) -> None:
  """The main loop of one process of MultiWorkerMirroredStrategy: a line in, as many steps timed."""
  task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
  os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[task]})
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  strategy = tf.distribute.MultiWorkerMirroredStrategy()
  made: Dict[str, Any] = {}

  def variables(name: str, shape: Tuple[int, ...]) -> Any:
    if name not in made:
      made[name] = tf.Variable(_initial(shape, len(made)), name=name)
    return made[name]

  feeds = {name: tf.constant(value)
           for name, value in model.values(model.batch // _WORKERS).items()}
  with strategy.scope():
    model.loss(variables, {name: value[:1] for name, value in feeds.items()})
    optimizer = tf.keras.optimizers.SGD(_LEARNING_RATE, momentum=_MOMENTUM)
    weights = list(made.values())
    optimizer.build(weights)

  def one_replica(feeds: Dict[str, Any]) -> None:
    with tf.GradientTape() as tape:
      loss = model.loss(variables, feeds) / _WORKERS
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

  @tf.function
  def step(feeds: Dict[str, Any]) -> None:
    strategy.run(one_replica, args=(feeds,))

  for line in sys.stdin:
    times = []
    for _ in range(int(line)):
      started = time.perf_counter()
      step(feeds)
      np.asarray(weights[0].numpy())  # waits for the step
      times.append(time.perf_counter() - started)
    print(json.dumps(times), flush=True)


@contextlib.contextmanager
def mirrored(name: str) -> Iterator[Callable[[int], List[float]]]:
  """Starts the strategy's processes; calling what it gives runs steps and returns their seconds."""
  from placeto_tf.runtime.workers import free_ports

  addresses = [f"127.0.0.1:{port}" for port in free_ports(_WORKERS)]
  with contextlib.ExitStack() as stack:
    processes = []
    for index in range(_WORKERS):
      log = stack.enter_context(tempfile.TemporaryFile("w+"))
      processes.append(subprocess.Popen(
          [sys.executable, os.path.abspath(__file__), f"--mirrored={name}"],
          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
          env={**os.environ, "TF_CONFIG": json.dumps({
              "cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})}))
      stack.callback(processes[-1].wait)
      stack.callback(processes[-1].kill)

    def run(steps: int) -> List[float]:
      for each in processes:
        print(steps, file=each.stdin, flush=True)
      lines = []
      for each in processes:
        # Where one has ended, the others would wait for it.
        while not select.select([each.stdout], [], [], 1.0)[0]:
          if any(other.poll() is not None for other in processes):
            break
        else:
          assert each.stdout is not None
          lines.append(each.stdout.readline())
      if len(lines) < len(processes) or not all(lines):
        raise RuntimeError(f"a process of MultiWorkerMirroredStrategy for {name} ended")
      return np.max([json.loads(line) for line in lines], axis=0).tolist()

    yield run


def best_placements(
    path: str, model: Model, cluster: Any, runtime: Any) -> Dict[str, Tuple[Any, Any]]:
  """Form -> (graph, the placement with the best measured step), for one replica and for two.

  Two share their variables, or have their own ("2 mirrored").
  """
  from placeto_tf.costs import estimate_costs
  from placeto_tf.placements import Placement
  from placeto_tf.placing import measured_search, replica_candidates
  from placeto_tf.problem.budget import Budget
  from placeto_tf.problem.placement_problem import PlacementProblem
  from placeto_tf.replication import ReplicaSource, data_parallel
  from placeto_tf.runtime import calibrating
  from placeto_tf.runtime.measuring import Measurer, MeasuringConfig

  source, found = ReplicaSource(path, {"batch_size": model.batch}), {}
  for replicas, own in ((1, False), (_WORKERS, False), (_WORKERS, True)):
    replicated = source.replicas(replicas, own)
    graph = replicated.graph
    calibration = calibrating.calibrate(cluster, runtime, graph, calibrating.CalibrationConfig(
        graph_runs=8, placements=4, placement_seconds=5.0))
    assert calibration.compute_us is not None  # a graph was given
    with tempfile.TemporaryDirectory() as folder:
      costs_path = os.path.join(folder, "costs.pb")
      calibrating.write_costs(graph, calibration.cluster, calibration.compute_us, costs_path)
      costs = estimate_costs(graph, calibration.cluster, source=costs_path)
    problem = PlacementProblem.build(graph, calibration.cluster, costs=costs)
    if replicas > 1:
      problem = dataclasses.replace(problem, replicated=replicated)
    candidate = replica_candidates.Candidate(replicas, model.batch, problem, own)
    replica_candidates.search_replicas(
        [candidate], Budget(max_seconds=FLAGS.search_seconds))
    known = {each.name: each.placement for each in problem.search_log.method_runs
             if each.placement is not None}
    known["best"] = problem.search_log.best_known
    measurer = Measurer(
        graph, calibration.cluster, runtime, MeasuringConfig(max_runs=10, max_seconds=5.0))
    measured = measured_search.search_measured(
        problem, measurer, known, max_measurements=FLAGS.measurements)
    found[replicated.strategy] = graph, Placement.from_indices(
        graph, calibration.cluster, measured.placement)
    if replicas == _WORKERS and not own:
      baseline = data_parallel(
          replicated, costs, calibration.cluster, list(range(_WORKERS)), np.full(graph.num_ops, -1))
      print(f"  mirrored strategy, simulated: {baseline.step_time_us / 1e3:.1f} ms",
            file=sys.stderr, flush=True)
    print(f"  {replicated.strategy} replicas: simulated "
          f"{problem.simulator.simulate(problem.search_log.best_known).step_time_us / 1e3:.1f} ms, "
          "measured "
          f"{measured.step.step_time_us / 1e3:.1f} ms", file=sys.stderr, flush=True)
  return found


def measure_model(name: str, folder: str) -> Dict[str, Any]:
  """The row of one model."""
  import tensorflow as tf

  from placeto_tf.clusters import Cluster
  from placeto_tf.placements import Placement
  from placeto_tf.runtime.device_maps import match_devices
  from placeto_tf.runtime.placed_runs import PlacedRun, feed_values
  from placeto_tf.runtime.workers import LocalWorkers

  model, path = MODELS[name], os.path.join(folder, f"{name}.meta")
  write_graph(model, path)
  cluster = Cluster.parse(f"cpu:{_WORKERS}")
  times: Dict[str, List[List[float]]] = {"one": [], "ours": [], "mirrored": []}
  with LocalWorkers(_WORKERS) as runtime:
    devices = match_devices(cluster.device_names, runtime.devices, None)
    found = best_placements(path, model, cluster, runtime)
    whole, _ = found["1"]
    single = Placement.from_indices(whole, cluster, np.zeros(whole.num_ops, dtype=np.int32))
    with contextlib.ExitStack() as stack:
      runs = {}
      for strategy, (graph, placement) in {"one": (whole, single), **found}.items():
        # With TensorFlow's optimizers, as the steps of the other strategy.
        runs[strategy] = PlacedRun(
            graph, placement, devices, runtime, feed_values(graph), config=(
                tf.compat.v1.ConfigProto(device_count={"CPU": 1}, allow_soft_placement=True)))
        stack.callback(runs[strategy].close)
      steps_of_mirrored = stack.enter_context(mirrored(name))
      steps_of_mirrored(5)
      for run in runs.values():
        for _ in range(5):
          run.step()
      # Measuring in the search counts times at a core's full speed. Two workers that are busy at
      # once may both be slower for it, which only steps by the clock show.
      trials = [{strategy: np.median([run.step() for _ in range(FLAGS.steps)])
                 for strategy, run in runs.items()} for _ in range(_TRIALS)]
      ours = min(runs, key=lambda strategy: np.median([trial[strategy] for trial in trials]))
      for _ in range(FLAGS.rounds):
        for label, strategy in (("one", "one"), ("ours", ours)):
          times[label].append([runs[strategy].step() for _ in range(FLAGS.steps)])
        times["mirrored"].append(steps_of_mirrored(FLAGS.steps))
  medians = {label: np.median(np.array(each), axis=1) * 1e3 for label, each in times.items()}
  row: Dict[str, Any] = {
      "model": name, "batch": model.batch, "replicas": "1" if ours == "one" else ours,
      "trials_ms": {strategy: 1e3 * float(np.median([trial[strategy] for trial in trials]))
                    for strategy in runs}}
  for label, each in medians.items():
    row[f"{label}_ms"], row[f"{label}_deviation_ms"] = float(np.median(each)), float(np.std(each))
  row["over_one"] = row["one_ms"] / row["ours_ms"]
  row["over_mirrored"] = row["mirrored_ms"] / row["ours_ms"]
  row["noise"] = float(np.std(medians["mirrored"] / medians["ours"]))
  return row


def main() -> None:
  """Times the models that are not there yet, and prints the table."""
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # which joins ops: see measure.py
  entry_point.import_tensorflow_quietly()
  if FLAGS.mirrored:
    run_mirrored(MODELS[FLAGS.mirrored])
    return
  if not FLAGS.out:
    raise flags.ValidationError("--out is missing; give a directory for the results")
  os.makedirs(FLAGS.out, exist_ok=True)
  path, rows = os.path.join(FLAGS.out, "rows.jsonl"), {}
  if os.path.exists(path):
    with open(path, encoding="utf-8") as file:
      rows = {row["model"]: row for row in map(json.loads, file)}
  for name in FLAGS.models:
    if name not in rows:
      print(name, file=sys.stderr, flush=True)
      rows[name] = measure_model(name, FLAGS.out)
      with open(path, "a", encoding="utf-8") as file:
        print(json.dumps(rows[name]), file=file)
  print("| model | global batch | one worker, ms | MultiWorkerMirroredStrategy, ms | ours, ms "
        "| replicas | one / ours | mirrored / ours |\n|---|---:|---:|---:|---:|---:|---:|---:|")
  for name in FLAGS.models:
    row = rows[name]
    print(f"| {name} | {row['batch']} | {row['one_ms']:.0f} ± {row['one_deviation_ms']:.0f} "
          f"| {row['mirrored_ms']:.0f} ± {row['mirrored_deviation_ms']:.0f} "
          f"| {row['ours_ms']:.0f} ± {row['ours_deviation_ms']:.0f} | {row['replicas']} "
          f"| {row['over_one']:.2f} | {row['over_mirrored']:.2f} ± {row['noise']:.2f} |")


if __name__ == "__main__":
  entry_point.run_program(main)
