"""Mutants of the files that users hand over, and the loaders that are to refuse them.

Each mutant is a function of its kind and number: bytes flipped, inserted, cut off, repeated or
zeroed; in JSON also values dropped, repeated or replaced, and deep nesting.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import tempfile
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from placeto_tf.errors import PlacetoError
from placeto_tf.files import user_files

GRAPH = "zoo:rnnlm:layers=1:steps=2:hidden=16:batch=2:vocab=20"
_VALUES: Tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**63 - 1, -2**63, 10**30, 10**400, 0.5, 1e308, 1e-320, "", "x", "\0",
    "/GPU:0", "/device:GPU:0", "../../etc/passwd", "é" * 100, [], [[]], {}, [1, "a", None],
    {"a": {"b": []}}, "NaN", "9" * 400)


@dataclasses.dataclass(frozen=True)
class Kind:
  """One kind of file.

  Attributes:
    files: name -> content of a sound one.
    load: reads the folder they are in.
  """

  files: Dict[str, bytes]
  load: Callable[[str], Any]


def mutant(kind: Kind, number: int) -> Tuple[str, bytes, str]:
  """The mutant of that number: the file that is changed, its content, and the changes."""
  rng = random.Random(number)
  name = rng.choice(sorted(kind.files))
  content, done = kind.files[name], []
  changes: List[Callable] = [_flipped, _spliced]
  if name.endswith(".json") and rng.random() < 0.75:
    changes = [_json_changed]
  for _ in range(rng.choice((1, 1, 1, 2, 4))):
    change = rng.choice(changes)
    content = change(rng, content)
    done.append(change.__name__.strip("_"))
  return name, content, "+".join(done)


def read(kind: Kind, folder: str, changed: Optional[str] = None, content: bytes = b"") -> str:
  """Writes the files of a kind, one of them changed, and loads them.

  Returns:
    "" if they are loaded, else the sentence they are refused with.
  """
  for name, sound in kind.files.items():
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
      file.write(content if name == changed else sound)
  try:
    kind.load(folder)
  except PlacetoError as error:
    return str(error)
  return ""


def _flipped(rng: random.Random, content: bytes) -> bytes:
  changed = bytearray(content)
  for _ in range(rng.choice((1, 1, 3, 20)) if changed else 0):
    changed[rng.randrange(len(changed))] = rng.randrange(256)
  return bytes(changed)


def _spliced(rng: random.Random, content: bytes) -> bytes:
  """A stretch is cut off, repeated, zeroed, or replaced."""
  first = rng.randrange(len(content) + 1)
  last = min(len(content), first + rng.choice((0, 1, 7, 100, len(content))))
  stretch = content[first:last]
  return content[:first] + rng.choice(
      (b"", stretch * rng.choice((2, 4)), b"\0" * len(stretch), rng.randbytes(7))) + content[last:]


def _json_changed(rng: random.Random, content: bytes) -> bytes:
  if rng.random() < 0.02:
    return b"[" * 100_000 if rng.random() < 0.5 else b'{"a":' * 100_000
  try:
    value = json.loads(content)
  except (ValueError, RecursionError):
    return _flipped(rng, content)
  # Down into the value: the container that holds the place that is changed.
  holder, key, at = None, None, value
  while isinstance(at, (dict, list)) and at and rng.random() < 0.8:
    holder, key = at, rng.choice(sorted(at)) if isinstance(at, dict) else rng.randrange(len(at))
    at = holder[key]
  if holder is None:
    value = rng.choice(_VALUES)
  elif rng.random() < 0.2:
    del holder[key]
  elif rng.random() < 0.1 and isinstance(holder, dict):
    holder[f"{key}_"] = at
  else:
    holder[key] = rng.choice(_VALUES)
  text = json.dumps(value)
  if rng.random() < 0.05 and text.startswith("{") and len(text) > 2:
    text = text[:-1] + ", " + text[1:]  # every key twice
  return text.encode("utf-8", "surrogatepass")


def _saved(save: Callable[[str], Any], *names: str) -> Dict[str, bytes]:
  """The files that `save` writes to a directory."""
  with tempfile.TemporaryDirectory() as folder:
    save(folder)
    found = {}
    for name in names:
      with open(os.path.join(folder, name), "rb") as file:
        found[name] = file.read()
    return found


def _graph_and_cluster() -> Tuple[Any, Any]:
  from placeto_tf.clusters import Cluster
  from placeto_tf.graphs import load_graph

  return load_graph(GRAPH), Cluster.parse("k80:2")


def _costed(path: str) -> None:
  """Loads a graph and estimates its costs, unless the graph is one of costs."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import estimate_costs
  from placeto_tf.graphs import load_graph

  estimate_costs(load_graph(path, batch_size=2), Cluster.parse("k80:2"), cache=False)


def _meta_graph_def() -> Kind:
  import graph_files

  return Kind({"graph.meta": graph_files.meta_graph_def().SerializeToString()},
              lambda folder: _costed(os.path.join(folder, "graph.meta")))


def _saved_model() -> Kind:
  """A SavedModel with nested calls, a loop and a branch."""
  import tensorflow as tf

  module = tf.Module()
  module.weights = tf.Variable(tf.ones([4, 4]))
  layer = tf.function(lambda x: tf.tanh(x @ module.weights))

  @tf.function(input_signature=[tf.TensorSpec([None, 4])])
  def serve(x: Any) -> Any:
    for _ in tf.range(3):
      x = layer(x)
      if tf.reduce_sum(x) > 0:
        x = x * 2
    module.weights.assign_add(tf.eye(4))
    return {"y": x, "z": layer(x)}

  module.serve = serve
  return Kind(
      _saved(lambda folder: tf.saved_model.save(module, folder, signatures=serve),
             "saved_model.pb"), _costed)


def _placement() -> Kind:
  from placeto_tf.placements import Placement

  graph, cluster = _graph_and_cluster()
  placement = Placement.from_indices(
      graph, cluster, np.zeros(graph.num_ops, np.int32), method="single", seed=0, evaluations=1,
      step_time_us=1.5, lower_bound_us=1.0, peak_memory_bytes={"/GPU:0": 1},
      baselines={"current": {"step_time_us": 2.0, "fits": True}})

  def load(folder: str) -> None:
    Placement.load(os.path.join(folder, "placement.json")).indices(graph, cluster)

  return Kind(_saved(lambda folder: placement.save(os.path.join(folder, "placement.json")),
                     "placement.json"), load)


def _cluster() -> Kind:
  from placeto_tf.clusters import Cluster

  cluster = Cluster.parse("k80:2+p100:1")
  return Kind(_saved(lambda folder: cluster.save(os.path.join(folder, "cluster.json")),
                     "cluster.json"),
              lambda folder: Cluster.parse(os.path.join(folder, "cluster.json")))


def _feeds() -> Kind:
  file = io.BytesIO()
  np.savez(file, x=np.zeros((2, 3), np.float32), y=np.arange(4))
  return Kind({"feeds.npz": file.getvalue()}, lambda folder: user_files.read_arrays(
      os.path.join(folder, "feeds.npz"), what="the feeds file", remedy="expected an .npz"))


def _scorer_weights() -> Kind:
  from placeto_tf.policies.placeto.scorer import ScorerWeights

  return Kind(_saved(ScorerWeights.untrained().save, "weights.json", "weights.npz"),
              ScorerWeights.load)


# Name -> a function that makes the kind.
KINDS: Dict[str, Callable[[], Kind]] = {
    "meta_graph_def": _meta_graph_def, "saved_model": _saved_model, "placement": _placement,
    "cluster": _cluster, "feeds": _feeds, "scorer_weights": _scorer_weights}
