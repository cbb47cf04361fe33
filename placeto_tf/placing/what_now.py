"""Writes the lines that run a placed graph, for this graph and this format.

They need TensorFlow and nothing of this package. Feeds are zeros of the right shape, so that they
run as they stand.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, List, Sequence

from placeto_tf.errors import listed
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.variables import INIT_OPS
from placeto_tf.placements.writing import placed_name

_MOST_FETCHES = 8
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_ITERATORS = ("MakeIterator",)
_TABLES = ("InitializeTableV2", "InitializeTableFromTextFileV2", "LookupTableImportV2")
# The initializers of the collections of a MetaGraph.
_COLLECTED = ["tf.global_variables_initializer()", "tf.local_variables_initializer()",
              "tf.tables_initializer()"]


def last_lines(graph: ComputationGraph, devices: Sequence[str], out: str) -> str:
  """Returns the lines that a program ends with: how to run its result, and where more is.

  Args:
    graph: that was placed.
    devices: names of the cluster's devices.
    out: the directory that was written.

  Returns:
    The lines, joined.
  """
  lines = [f"  {line}" for line in run_lines(graph, devices, out)]
  file = os.path.join(out, "README.md")
  if lines:
    first = _values_first(graph, placed_name(graph))
    lines = [f"To run it, where TensorFlow has these devices{first and ', ' + first}:", *lines,
             f"Feeds, checkpoints and how to measure it: {file}"]
  elif _captures(graph):
    lines = [f"To apply the placement to the model or function: {file}"]
  return "\n".join([
      *lines, f"To look at it: tensorboard --logdir={os.path.join(out, 'tensorboard')}"])


def run_lines(graph: ComputationGraph, devices: Sequence[str], out: str) -> List[str]:
  """Returns two lines of Python that load the placed graph and run a step.

  Args:
    graph, devices, out: see `last_lines`.

  Returns:
    The lines; none where the graph has no ops that run, or lives in a model.
  """
  name = placed_name(graph)
  path = os.path.join(out, name)
  # Several CPU devices of one process have to be asked for.
  cpus = sum(each.startswith("/CPU:") or each.startswith("/device:CPU:") for each in devices)
  # By format: a SavedModel, a MetaGraph, a binary or a text GraphDef.
  if name == "saved_model":
    split = "" if cpus < 2 else (
        'tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], '
        f"[tf.config.LogicalDeviceConfiguration()] * {cpus}); ")
    return [f"import tensorflow as tf; {split}model = tf.saved_model.load({path!r}, "
            'options=tf.saved_model.LoadOptions(experimental_variable_policy="save_variable_devices'
            '"))', f"print({_call(graph)})"]
  if "cost_graph" in name or _captures(graph):
    return []
  load = (f"saver = tf.train.import_meta_graph({path!r})" if "meta" in name else
          f'tf.import_graph_def(tf.GraphDef.FromString(open({path!r}, "rb").read()), name="")')
  if name == "graph.pbtxt":
    load = ("from google.protobuf import text_format; tf.import_graph_def(text_format.Parse("
            f'open({path!r}).read(), tf.GraphDef()), name="")')
  return ["import numpy as np; import tensorflow.compat.v1 as tf; tf.disable_eager_execution(); "
          + load, f"{_session(devices, cpus)}; {_initialize(graph, name)}print(session.run("
          f"{list(graph.fetches[:_MOST_FETCHES])}, {{{', '.join(_feeds(graph))}}}))"]


def _session(devices: Sequence[str], cpus: int) -> str:
  """Returns the code that makes a session with the cluster's devices."""
  if any("/job:" in name and "/job:localhost" not in name for name in devices):
    return 'session = tf.Session("grpc://your_first_worker:2222")'
  return "session = tf.Session()" if cpus < 2 else (
      f'session = tf.Session(config=tf.ConfigProto(device_count={{"CPU": {cpus}}}))')


def _initialize(graph: ComputationGraph, name: str) -> str:
  """Returns the code that prepares a session: first values, iterators and queues."""
  nodes = graph.origin.graph_def.node
  then = ""
  if "meta" in name:
    first, kinds = list(_COLLECTED), [*_ITERATORS]
    if "queue_runners" in graph.origin.proto.collection_def:
      then = "tf.train.start_queue_runners(session); "
  else:
    known = {node.name for node in nodes}
    # A GraphDef has no collections: its op `init`, if it has one.
    first = [repr(found) for found in INIT_OPS if found in known][:1]
    kinds = [*_ITERATORS, *_TABLES]
  first += [repr(node.name) for node in nodes if node.op in kinds]
  shown = first[0] if len(first) == 1 else f"[{', '.join(first)}]"
  return f"session.run({shown}); {then}" if first else ""


def _values_first(graph: ComputationGraph, name: str) -> str:
  """Returns the condition under which the lines run, where the graph does not hold all it needs."""
  if "meta" in name or name == "saved_model":
    return ""  # it has its initializers and queue runners, or restores its values when loaded
  types = {node.op for node in graph.origin.graph_def.node}
  known = {node.name for node in graph.origin.graph_def.node}
  # A GraphDef may lack initializers, and has no queue runners.
  needs = []
  if types.intersection(_VARIABLES) and known.isdisjoint(INIT_OPS):
    needs.append("its variables have values (the graph has no op `init`)")
  if any(kind.startswith("QueueDequeue") for kind in graph.op_types):
    needs.append("something fills its queues (a GraphDef has no queue runners: export a MetaGraph)")
  return f"once {' and '.join(needs)}" if needs else ""


def _feeds(graph: ComputationGraph) -> List[str]:
  """Returns a feed of zeros for each placeholder."""
  source = graph.origin
  # Feeds are zeros of the placeholder's shape, or empty texts.
  types = {node.name: node.attr["dtype"].type for node in source.graph_def.node}
  return [f"{feed!r}: {_zeros(types.get(feed.partition(':')[0], 0), source.feed_shapes.get(feed))}"
          for feed in graph.feeds]


def _zeros(dtype: int, shape: Any) -> str:
  """Returns the code of an array of zeros, or of empty texts."""
  shown = list(shape or ())
  return f'np.full({shown}, "")' if dtype == 7 else f"np.zeros({shown})"  # DT_STRING


def _call(graph: ComputationGraph) -> str:
  """Returns a call of the placed signature of a SavedModel."""
  import tensorflow as tf

  source = graph.origin
  fetched = set(graph.fetches)
  # The signature with the most of the fetched tensors; of equal ones the last by name.
  key, signature = max(
      sorted(source.meta_graph.signature_def.items(), reverse=True),
      key=lambda item: len(fetched.intersection(info.name for info in item[1].outputs.values())))
  feeds = ", ".join(
      f"{name!r}: tf.zeros({list(source.feed_shapes.get(info.name, ()))}, "
      f"tf.{tf.as_dtype(info.dtype).name})" for name, info in sorted(signature.inputs.items()))
  return f"model.signatures[{key!r}](**{{{feeds}}})"


def _reading_flags(graph: ComputationGraph) -> str:
  """Returns the flags with which a program reads the same graph from its file."""
  source = graph.origin
  flags = [f"--feed_shapes={name}:{'x'.join(map(str, shape)) or 'scalar'}"
           for name, shape in source.feed_shapes.items()]
  if source.format in ("graph_def", "meta_graph_def") and len(graph.fetches) <= _MOST_FETCHES:
    flags.append(f"--fetches={','.join(graph.fetches)}")
  return "".join(f" {flag}" for flag in flags)


def _captures(graph: ComputationGraph) -> bool:
  """Returns whether variables are captures of a live function, which are in no file."""
  return graph.origin.format == "concrete_function"


def readme(
    graph: ComputationGraph, devices: Sequence[str], graph_spec: str = "GRAPH",
    cluster_spec: str = "CLUSTER") -> str:
  """Returns the README.md of a result directory.

  Args:
    graph: that was placed.
    devices: names of the cluster's devices.
    graph_spec, cluster_spec: the values of --graph and --cluster.

  Returns:
    The text, in Markdown.
  """
  name = placed_name(graph)
  what = (f"`{name}` is the graph with a device for each op; `placement.json` has op names and\n"
          f"devices alone. Its devices are {listed(devices, most=8)}.")
  if "cost_graph" in name:
    return f"# A placed graph of costs\n\n{what}\n\nIt has no ops that run.\n"
  first = _values_first(graph, name)
  code = "\n".join(part for line in run_lines(graph, devices, "") for part in line.split("; "))
  if not code:
    code = """import placeto_tf as placeto  # this graph's variables are a live model's
placement = placeto.Placement.load("placement.json")
# The ConcreteFunction that was placed; of a Keras model, its inference with the same inputs:
# function = tf.function(lambda inputs: model(inputs, training=False)).get_concrete_function(
#     tf.TensorSpec([None, ...]))
placed = placement.apply(function)"""
  needs = "" if _captures(graph) else (
      "Where it runs it needs TensorFlow with these devices, and nothing of placeto_tf; the\n"
      "zeros stand for your data." + (f" It runs {first}." if first else "") + "\n")
  restore = """
Values from a checkpoint instead of the initializer: `saver.restore(session, "your/checkpoint")`.
""" if "meta" in name else ""
  return f"""# A placed graph

{what}
{needs}
```python
{code}
```
{restore}
To time it beside the prediction, where placeto_tf is installed:

```sh
python scripts/measure.py --graph={shlex.quote(graph_spec)}{_reading_flags(graph)} \\
    --cluster={shlex.quote(cluster_spec)} --placement=placement.json
```

`report.json` has the figures, `timeline.json` one step for https://ui.perfetto.dev, and
`tensorboard --logdir=tensorboard` shows the search.
"""
