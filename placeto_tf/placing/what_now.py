"""What to do with a placed graph: the lines that run it, for this graph and this format."""

from __future__ import annotations

import os
from typing import Sequence

from placeto_tf.errors import listed
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placements.writing import placed_name


def two_lines(graph: ComputationGraph, out: str) -> str:
  """The lines that a program ends with: how to run what it wrote, and where more is."""
  name = placed_name(graph)
  if name.startswith("cost_graph"):
    return f"To look at it: tensorboard --logdir={os.path.join(out, 'tensorboard')}"
  return (f"To run it: {_load(name, os.path.join(out, name))}\n"
          f"Feeds, checkpoints and how to measure it: {os.path.join(out, 'README.md')}; "
          f"to look at it: tensorboard --logdir={os.path.join(out, 'tensorboard')}")


def readme(graph: ComputationGraph, devices: Sequence[str]) -> str:
  """README.md of a result directory.

  Args:
    graph: that was placed.
    devices: names of the cluster's devices.
  """
  name = placed_name(graph)
  shapes = graph.source.feed_shapes if graph.source is not None else {}
  feeds = "".join(f"    {feed!r}: ...,  # {list(shapes.get(feed, ()))}\n" for feed in graph.feeds)
  fetches = ", ".join(repr(fetch) for fetch in graph.fetches[:8])
  path = graph.source.path if graph.source is not None and graph.source.path else "GRAPH"
  what = (f"`{name}` is the graph with a device for each op; `placement.json` has op names and "
          f"devices alone. Its devices are {listed(devices, most=8)}. Where it runs it needs "
          "TensorFlow with these devices, and nothing of placeto_tf.")
  if name.startswith("cost_graph"):
    return f"# A placed graph of costs\n\n{what}\n\nIt has no ops that run.\n"
  if name == "saved_model":
    code = f"""import tensorflow as tf
model = tf.saved_model.load({name!r})  # variables included; placeto_tf.load_placed puts them
print(list(model.signatures))         # on their devices"""
  else:
    read = f"""import pathlib
import tensorflow as tf
tf1 = tf.compat.v1
{_graph_of(name)}
session = tf1.Session(graph=graph, config=tf1.ConfigProto(allow_soft_placement=False))
"""
    restore = """saver.restore(session, "your/checkpoint")  # or run the graph's own initializer
""" if "meta" in name else ""
    code = f"{read}{restore}session.run([{fetches}], feed_dict={{\n{feeds}}})"
  return f"""# A placed graph

{what}

```python
{code}
```

To time it beside the prediction, where placeto_tf is installed (CLUSTER is what it was placed for):

```sh
python scripts/measure.py --graph={path} --cluster=CLUSTER --placement=placement.json
```

`report.json` has the figures, `timeline.json` one step for https://ui.perfetto.dev, and
`tensorboard --logdir=tensorboard` shows the search.
"""


def _graph_of(name: str) -> str:
  """Code that makes `graph`, and a `saver` of a MetaGraphDef."""
  if "meta" in name:
    return f"""with tf.Graph().as_default() as graph:
  saver = tf1.train.import_meta_graph({name!r})"""
  if name.endswith("pbtxt"):
    return f"""from google.protobuf import text_format
graph_def = text_format.Parse(pathlib.Path({name!r}).read_text(), tf1.GraphDef())
with tf.Graph().as_default() as graph:
  tf.graph_util.import_graph_def(graph_def, name="")"""
  return f"""graph_def = tf1.GraphDef.FromString(pathlib.Path({name!r}).read_bytes())
with tf.Graph().as_default() as graph:
  tf.graph_util.import_graph_def(graph_def, name="")"""


def _load(name: str, path: str) -> str:
  if name == "saved_model":
    return f'model = tf.saved_model.load("{path}")'
  if "meta" in name:
    return f'saver = tf.compat.v1.train.import_meta_graph("{path}")'
  return f'graph_def = tf.compat.v1.GraphDef.FromString(open("{path}", "rb").read())' if (
      not name.endswith("pbtxt")) else f'text_format.Parse(open("{path}").read(), GraphDef())'
