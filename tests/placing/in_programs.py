"""Places and trains in programs that have changed TensorFlow's settings; prints one JSON object.

Every setting gets a process that is forked from this one, which has imported everything, loaded the
compiled code of searches, started the process that analyses graphs, and run no TensorFlow op. The
result of each: numbers as they are to the last bit, and the settings before and after. Arguments:
the version of Keras, with 3 for the parts alone that touch a model; the settings, with "+" between
those of one program.
"""

import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
import threading
import traceback

KERAS = sys.argv[1] if len(sys.argv) > 1 else "2"
if KERAS == "2":
  os.environ["TF_USE_LEGACY_KERAS"] = "1"
else:
  os.environ.pop("TF_USE_LEGACY_KERAS", None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow.experimental.numpy as tnp  # noqa: E402
from tensorflow.python.autograph.core import config  # noqa: E402

import placeto_tf as placeto  # noqa: E402
from placeto_tf.costs import guarded  # noqa: E402
from placeto_tf.placing import registry, run, running, training_plans  # noqa: E402,F401
from placeto_tf.problem.budget import Budget  # noqa: E402
from random_problem import random_problem  # noqa: E402

# As TensorFlow 2.16 does: before, each process takes 10 s to convert Keras 2 by AutoGraph.
config.CONVERSION_RULES = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)
keras, v1 = tf.keras, tf.compat.v1
STEP = {"fetches": ["train"], "batch_size": 16}


def _threads(count):
  tf.config.threading.set_intra_op_parallelism_threads(count)
  tf.config.threading.set_inter_op_parallelism_threads(count)


def _policy(name):
  return lambda: keras.mixed_precision.set_global_policy(name)


def _graph_with_ops():
  scope = tf.Graph().as_default()
  scope.__enter__()
  tf.constant(1.0, name="x")  # named as an op of the graph that is placed


def _enter(make):
  return lambda: make().__enter__()


# What the program does before it places, in the thread that places.
SETTINGS = {
    "plain": lambda: None,
    "mixed_float16": _policy("mixed_float16"),
    "mixed_bfloat16": _policy("mixed_bfloat16"),
    "floatx": lambda: keras.backend.set_floatx("float64"),
    "v1": v1.disable_v2_behavior,
    "graph_mode": v1.disable_eager_execution,
    "check_numerics": tf.debugging.enable_check_numerics,
    "determinism": tf.config.experimental.enable_op_determinism,
    "eagerly": lambda: tf.config.run_functions_eagerly(True),
    "numpy": tnp.experimental_enable_numpy_behavior,
    "hard_placement": lambda: tf.config.set_soft_device_placement(False),
    "log_placement": lambda: tf.debugging.set_log_device_placement(True),
    "device_scope": _enter(lambda: tf.device("/CPU:1")),
    "name_scope": _enter(lambda: tf.name_scope("mine")),
    "strategy_scope": _enter(lambda: tf.distribute.MirroredStrategy(["/CPU:0"]).scope()),
    "default_graph": _graph_with_ops,
    "xla": lambda: tf.config.optimizer.set_jit("autoclustering"),
    "one_thread": lambda: _threads(1),
    "asyncio": lambda: None,
    "other_thread": lambda: None,
}
FLOATS = ("mixed_float16", "mixed_bfloat16", "floatx")
# TensorFlow itself traces another step of a Keras model: with casts, or with checks between ops.
ANOTHER_STEP = (*FLOATS, "numpy", "check_numerics")
# Models are refused there: calls are no eager ones, or the scope is a strategy's.
GRAPHS_ALONE = ("v1", "graph_mode", "strategy_scope")


def graph_def():
  """A training step of four branches, as TF1 writes it."""
  graph = tf.Graph()
  with graph.as_default():
    v1.set_random_seed(1)
    x = v1.placeholder(tf.float32, [None, 64], name="x")
    branches = [
        tf.matmul(x, v1.get_variable(f"w{i}", [64, 64], use_resource=True)) for i in range(4)]
    v1.train.GradientDescentOptimizer(0.1).minimize(
        tf.reduce_mean(tf.square(tf.add_n(branches))), name="train")
  return graph.as_graph_def()


def model():
  """A compiled model of known weights, whose floats do not depend on the program."""
  x = keras.Input([8], dtype="float32")
  hidden = [keras.layers.Dense(8, "tanh", dtype="float32", name=f"h{i}")(x) for i in range(2)]
  made = keras.Model(
      x, keras.layers.Dense(1, dtype="float32")(keras.layers.Add(dtype="float32")(hidden)))
  made.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=False, jit_compile=False)
  rng = np.random.default_rng(0)
  made.set_weights([rng.normal(size=each.shape).astype("float32") for each in made.get_weights()])
  return made


def batch():
  """Inputs and targets."""
  rng = np.random.default_rng(1)
  return rng.normal(size=(16, 8)).astype("float32"), rng.normal(size=(16, 1)).astype("float32")


def on_graphs(found):
  """Loads, places and simulates the graph."""
  graph = placeto.load_graph(GRAPH, **STEP)
  found["ops"] = _digest([graph.op_names, graph.op_types])
  placed = placeto.place(graph, "k80:2", max_evaluations=30)
  found["place"] = [placed.step_time_us, _digest(dict(placed.placement))]
  found["simulate"] = placeto.simulate(graph, "k80:2", placed.placement).step_time_us
  replicas = placeto.place(GRAPH, "k80:2", max_evaluations=20, replicas=2, **STEP)
  found["replicas"] = [replicas.step_time_us, replicas.replication.check.checked]


def on_models(found, placed, **others):
  """Plans a model, and trains it placed for a batch, and others as they are."""
  plan = placeto.plan_training(placed, "v100:2", batch_size=16, max_evaluations=20)
  found["plan"] = plan.step_time_us
  placeto.compile_placed(placed, "local", batch_size=16, max_evaluations=20, verify=False)
  for name, trained in {"weights": placed, **others}.items():
    trained.train_on_batch(*batch())
    found[name] = [_digest(each.tolist()) for each in trained.get_weights()]


def settings():
  """The settings of this process and thread, as text."""
  from tensorflow.python import tf2
  from tensorflow.python.eager import context
  from tensorflow.python.framework import ops, tensor, tensor_shape

  own = context.context()
  with contextlib.ExitStack() as stack:
    if not tf.executing_eagerly():
      scope = ops.get_default_graph().get_name_scope()
    else:
      scope = stack.enter_context(tf.name_scope("probe"))
    device = str(own.device_name) if tf.executing_eagerly() else ""
  return [repr(each) for each in (
      tf2.enabled(), tf.executing_eagerly(), v1.control_flow_v2_enabled(),
      v1.resource_variables_enabled(), tensor_shape._TENSORSHAPE_V2_OVERRIDE,
      tensor.Tensor._USE_EQUALITY, keras.backend.floatx(), keras.mixed_precision.global_policy(),
      tf.config.functions_run_eagerly(), tf.config.get_soft_device_placement(),
      tf.debugging.get_log_device_placement(), tf.config.optimizer.get_jit(), len(own.op_callbacks),
      scope, device, tf.distribute.has_strategy(), own._seed, ops.get_dtype_conversion_mode(),
      np.random.get_state()[1].tolist()[:3], os.environ.get("TF_USE_LEGACY_KERAS"))]


def _digest(value):
  return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _run(names, found):
  tf.config.set_logical_device_configuration(
      tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
  # The policy of floats decides what a model is, so models come before it.
  wanted = ("placed", "unplaced") if names & {"plain", *ANOTHER_STEP} else ("placed",)
  models = {each: model() for each in wanted} if names & {*FLOATS} else {}
  for name in sorted(names):
    SETTINGS[name]()
  before = settings()
  try:
    if KERAS == "2":
      on_graphs(found)
    if not names & {*GRAPHS_ALONE}:
      on_models(found, **(models or {each: model() for each in wanted}))
  except Exception as error:
    found["error"] = f"{type(error).__name__}: {error} {traceback.format_exc()[-1500:]}"
  found["changed"] = [[was, now] for was, now in zip(before, settings()) if was != now]


def _in_process(names, pipe):
  found = {}
  # Forks ask the process of their parent in turn; each would take seconds to start another one.
  guarded._process.is_running = lambda: True
  if "asyncio" in names:
    async def place():
      _run(names, found)
    asyncio.run(place())
  elif "other_thread" in names:
    thread = threading.Thread(target=_run, args=(names, found))
    thread.start()
    thread.join()
  else:
    _run(names, found)
  pipe.send(found)


def main():
  """Runs the settings one by one."""
  processes, found = multiprocessing.get_context("fork"), {}
  guarded.prepare()
  for name in sys.argv[2].split(",") if len(sys.argv) > 2 else list(SETTINGS):
    names = set(name.split("+"))
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=_in_process, args=(names, theirs))
    process.start()
    theirs.close()
    try:
      found[name] = ours.recv()
    except EOFError:
      found[name] = {"error": "the process died"}
    process.join()
  print("\n" + json.dumps(found))  # TensorFlow's log of devices may end within a line


GRAPH = graph_def()
running.run(random_problem(), registry.find("auto"), Budget(max_evaluations=100))
if __name__ == "__main__":
  main()
