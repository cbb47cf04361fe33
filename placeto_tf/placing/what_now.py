"""Writes the README.md of a result directory: the lines that run the placed graph there.

The lines need TensorFlow, but not this package. Feeds are zeros of the right shape, so that the
lines run without changes.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, List, Sequence

from placeto_tf.errors import flags, listed
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.tensor_names import op_of
from placeto_tf.graphs.variables import INIT_OPS
from placeto_tf.on_use import tf
from placeto_tf.ops import FILLS
from placeto_tf.placements.writing import placed_name

Names = Sequence[str]
_MOST_ON_SCREEN = 3000  # characters of lines that are printed
_MOST_FETCHES = 8
_COLLECTED = ["tf.global_variables_initializer()", "tf.local_variables_initializer()",
              "tf.tables_initializer()"]
_LIVE = """import placeto_tf as placeto  # this graph's variables are a live model's
placement = placeto.Placement.load("placement.json")
# The ConcreteFunction that was placed; of a Keras model, its inference with the same inputs:
# function = tf.function(lambda inputs: model(inputs, training=False)).get_concrete_function(
#     tf.TensorSpec([None, ...]))
placed = placement.apply(function)"""
_NEEDS = """Where it runs it needs TensorFlow with these devices, and nothing of placeto_tf; the
zeros stand for your data."""
_OF_FORMAT = {
    "meta": """
Values from a checkpoint instead of the initializer: `saver.restore(session, "your/checkpoint")`.
""",
    "graph_def": """
A GraphDef has no queue runners, and its variables have values only if it has an op `init`; where it
lacks them, export a MetaGraph and place that.
"""}


def last_lines(graph: ComputationGraph, devices: Names, out: str, workers: Names = ()) -> str:
  """Returns the lines that a program ends with: how to run its result, and the pages with more.

  Args:
    graph: the placed graph.
    devices: names of the cluster's devices.
    out: the directory that was written.
    workers: addresses, as in --workers.
  """
  page = os.path.join(out, "README.md")
  lines = [f"  {line}" for line in run_lines(graph, devices, workers)]
  if sum(map(len, lines)) > _MOST_ON_SCREEN:  # hundreds of feeds
    lines = [f"  the lines of {page}"]
  return "\n".join([
      *([f"To run it, in {out}, where TensorFlow has these devices:", *lines] if lines else []),
      f"Feeds, checkpoints and how to measure it: {page}",
      f"To look at it: tensorboard --logdir={os.path.join(out, 'tensorboard')}"])


def run_lines(graph: ComputationGraph, devices: Names, workers: Names = ()) -> List[str]:
  """Returns lines of Python that load the placed graph from their directory and run a step.

  Args:
    graph, devices, workers: see `last_lines`.

  Returns:
    The lines; none if the graph has no ops that can run.
  """
  name = placed_name(graph)
  # Several CPU devices of one process have to be asked for.
  cpus = sum(each.startswith(("/CPU:", "/device:CPU:")) for each in devices)
  if "cost_graph" in name:
    return []
  if graph.origin.format == "concrete_function":
    return _LIVE.splitlines()
  of_tf1 = name == "saved_model" and not graph.origin.meta_graph.HasField("object_graph_def")
  if name == "saved_model" and not of_tf1:
    split = [] if cpus < 2 else [
        'tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], '
        f"[tf.config.LogicalDeviceConfiguration()] * {cpus})"]
    return ["import tensorflow as tf", *split,
            f"model = tf.saved_model.load({name!r}, options=tf.saved_model.LoadOptions("
            'experimental_variable_policy="save_variable_devices"))', f"print({_call(graph)})"]
  # By format: a MetaGraph, a text or a binary GraphDef.
  load = [f"saver = tf.train.import_meta_graph({name!r})"]
  if name == "graph.pbtxt":
    load = ["from google.protobuf import text_format",
            f'proto = text_format.Parse(open({name!r}).read(), tf.GraphDef())',
            'tf.import_graph_def(proto, name="")']
  elif "meta" not in name:
    load = [f'tf.import_graph_def(tf.GraphDef.FromString(open({name!r}, "rb").read()), name="")']
  # A session gives the value of an op's first output, and None for the op itself.
  counts = dict(zip(graph.op_names, graph.output_offsets[1:] - graph.output_offsets[:-1]))
  fetches = [f"{name}:0" if counts.get(name) else name for name in graph.fetches[:_MOST_FETCHES]]
  step = [f"print(session.run({fetches}, {{{', '.join(_feeds(graph))}}}))"]
  # Queues that threads of the program fill; only a MetaGraph has their runners.
  if "meta" in name and "queue_runners" in graph.origin.proto.collection_def:
    # Python may abort at its end while threads of queues still run.
    step = ["coordinator = tf.train.Coordinator()",
            "threads = tf.train.start_queue_runners(session, coordinator)", *step,
            "coordinator.request_stop()", "coordinator.join(threads)"]
  first = _first(graph, name)
  if of_tf1:  # eager loading would leave the variables on one device
    load, tags = [], list(graph.origin.meta_graph.meta_info_def.tags)
    first = [f"tf.saved_model.load(session, {tags}, {name!r})"]
  return ["import numpy as np", "import tensorflow.compat.v1 as tf",
          "tf.disable_eager_execution()", *load, _session(devices, cpus, workers), *first, *step]


def _session(devices: Names, cpus: int, workers: Names) -> str:
  """Returns the code that makes a session with the cluster's devices."""
  if any("/job:" in name and "/job:localhost" not in name for name in devices):
    # Workers of "local:N" have ended.
    known = workers and not workers[0].startswith("local:")
    return f'session = tf.Session("grpc://{workers[0] if known else "your_first_worker:2222"}")'
  return "session = tf.Session()" if cpus < 2 else (
      f'session = tf.Session(config=tf.ConfigProto(device_count={{"CPU": {cpus}}}))')


def _first(graph: ComputationGraph, name: str) -> List[str]:
  """Returns the line that prepares a session: first values, iterators and tables."""
  nodes, meta = graph.origin.graph_def.node, "meta" in name
  known = {node.name for node in nodes}
  # A GraphDef has no collections: its op `init`, if it has one.
  first = list(_COLLECTED) if meta else [repr(each) for each in INIT_OPS if each in known][:1]
  # A MetaGraph has those of its tables in a collection.
  kinds = "MakeIterator" if meta else FILLS
  first += [repr(node.name) for node in nodes if node.op.startswith(kinds)]
  return [f"session.run([{', '.join(first)}])"] if first else []


def _feeds(graph: ComputationGraph) -> List[str]:
  """Returns a feed for each placeholder: zeros of its shape, or empty texts."""
  source = graph.origin
  types = {node.name: node.attr["dtype"].type for node in source.graph_def.node}
  feeds = []
  for feed in graph.feeds:
    shape = list(source.feed_shapes.get(feed, ()))
    is_text = types.get(op_of(feed)) == 7  # DT_STRING
    feeds.append(f"{feed!r}: " + (f'np.full({shape}, "")' if is_text else f"np.zeros({shape})"))
  return feeds


def _call(graph: ComputationGraph) -> str:
  """Returns a call of the placed signature of a SavedModel."""
  source = graph.origin
  fetched = set(graph.fetches)
  # Choose the signature with most fetched tensors; among equal ones, the last by name.
  key, signature = max(
      sorted(source.meta_graph.signature_def.items(), reverse=True),
      key=lambda item: len(fetched.intersection(info.name for info in item[1].outputs.values())))
  feeds = ", ".join(
      f"{name!r}: tf.zeros({list(source.feed_shapes.get(info.name, ()))}, "
      f"tf.{tf.as_dtype(info.dtype).name})" for name, info in sorted(signature.inputs.items()))
  return f"model.signatures[{key!r}](**{{{feeds}}})"


def _reading_flags(graph: ComputationGraph) -> str:
  """Returns the flags that make a program read the same graph from its file."""
  source = graph.origin
  found = flags("feed_shapes", source.feed_shapes)
  if source.format in ("graph_def", "meta_graph_def") and len(graph.fetches) <= _MOST_FETCHES:
    found += flags("fetches", list(graph.fetches))
  return "".join(f" {flag}" for flag in found)


def readme(
    graph: ComputationGraph, devices: Names, graph_spec: str = "GRAPH",
    cluster_spec: str = "CLUSTER", **options: Any) -> str:
  """Returns the README.md of a result directory.

  Args:
    graph: that was placed.
    devices: names of the cluster's devices.
    graph_spec, cluster_spec: the values of --graph and --cluster.
    **options: further options of measuring, such as workers; None and "" are left out.
  """
  name = placed_name(graph)
  what = (f"`{name}` is the graph with a device for each op; `placement.json` has the devices of\n"
          f"its ops by name. Its devices are {listed(devices, most=8)}.")
  if "cost_graph" in name:
    return f"# A placed graph of costs\n\n{what}\n\nIt has no ops that run.\n"
  live = graph.origin.format == "concrete_function"
  kind = "meta" if "meta" in name else "" if live or name == "saved_model" else "graph_def"
  code = "\n".join(run_lines(graph, devices, options.get("workers", ())))
  # The command runs in the directory, with the graph that is there: replicas are no other file's.
  graph_spec = os.path.abspath(graph_spec) if live and os.path.exists(graph_spec) else (
      graph_spec if live else name)
  cluster_spec = os.path.abspath(cluster_spec) if os.path.exists(cluster_spec) else cluster_spec
  more = "".join(f" {flag}" for name, each in options.items() if each for flag in flags(
      name, os.path.abspath(each) if isinstance(each, str) and os.path.exists(each) else each))
  return f"""# A placed graph

{what}
{"" if live else _NEEDS}

```python
{code}
```
{_OF_FORMAT.get(kind, "")}
To time it beside the prediction, in this directory:

```sh
placeto-measure --graph={shlex.quote(graph_spec)}{_reading_flags(graph)} \\
    --cluster={shlex.quote(cluster_spec)} --placement=placement.json{more}
```

`report.json` has the figures, `timeline.json` one step for https://ui.perfetto.dev, and
`tensorboard --logdir=tensorboard` shows the search.
"""
