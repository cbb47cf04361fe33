"""Mutants of the files that programs read beside graphs, and the loaders that are to refuse them.

Each mutant is a function of the seed and its number: bytes flipped, inserted, cut off or repeated;
in JSON also fields dropped, repeated or given another value, numbers beyond all limits, and deep
nesting; now and then the file is a pipe, a device, a directory, a link to itself or a terabyte.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import random
import shutil
import tempfile
import warnings
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from placeto_tf.errors import PlacetoError
from placeto_tf.files import user_files

GRAPH = "zoo:rnnlm:layers=1:steps=2:hidden=16:batch=2:vocab=20"
_VALUES: Tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, -2**63, 10**30, 10**400, 0.5, 1e308, -1e308,
    1e-320, "", "x", "\0", "/GPU:0", "/device:GPU:0", "../../etc/passwd", "../precious", "é" * 100,
    [], [[]], {},
    [1, "a", None], {"a": {"b": []}}, "NaN", "9" * 400)
KINDS = ("placement", "cluster", "costs", "feeds", "scorer_weights", "published_weights", "run",
         "results", "study", "manifest", "graph_set", "cached_costs", "keras_archive",
         "keras_hdf5")
SPECIAL = ("pipe", "device", "directory", "loop", "huge", "missing")


@dataclasses.dataclass(frozen=True)
class Kind:
  """One kind of file.

  Attributes:
    files: name -> content of a sound one.
    load: reads the folder they are in.
  """

  files: Dict[str, bytes]
  load: Callable[[str], Any]


def kinds(names: Tuple[str, ...] = ()) -> Dict[str, Kind]:
  """Name -> kind; all of them, or those named."""
  makers: Dict[str, Callable[[], Kind]] = {
      "placement": _placement, "cluster": _cluster, "costs": _costs, "feeds": _feeds,
      "scorer_weights": _scorer_weights, "published_weights": _published_weights, "run": _run,
      "results": _results, "study": _study, "manifest": _manifest,
      "graph_set": _graph_set, "cached_costs": _cached_costs,
      "keras_archive": lambda: _keras("model.keras"), "keras_hdf5": lambda: _keras("model.h5")}
  return {name: makers[name]() for name in names or KINDS}


def mutant(kind: Kind, seed: int, number: int) -> Tuple[str, bytes, str]:
  """The mutant of that number: the file that is changed, its content, and what was done.

  What was done is one of `SPECIAL` where the file is none.
  """
  rng = random.Random(f"{seed}/{number}")
  name = rng.choice(sorted(kind.files))
  content = kind.files[name]
  if rng.random() < 0.01:
    return name, b"", rng.choice(SPECIAL)
  changes: List[Callable] = [_flipped, _inserted, _cut, _repeated, _zeroed]
  if name.endswith((".json", ".jsonl", ".complete")) and rng.random() < 0.75:
    changes = [_json_changed]
  done = []
  for _ in range(rng.choice((1, 1, 1, 2, 4))):
    change = rng.choice(changes)
    content = change(rng, content)
    done.append(change.__name__.strip("_"))
  return name, content, "+".join(done)


def write(kind: Kind, folder: str, name: str, content: bytes, done: str) -> None:
  """Writes the files of a kind into an empty folder, one of them changed."""
  for each, sound in kind.files.items():
    path = os.path.join(folder, each)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if each != name or done not in SPECIAL:
      with open(path, "wb") as file:
        file.write(content if each == name else sound)
  path = os.path.join(folder, name)
  if done == "pipe":
    os.mkfifo(path)
  elif done == "device":
    os.symlink("/dev/zero", path)
  elif done == "directory":
    os.mkdir(path)
  elif done == "loop":
    os.symlink(path, path)
  elif done == "huge":
    with open(path, "wb") as file:
      file.truncate(1 << 40)  # holes


def read(kind: Kind, folder: str) -> Tuple[str, str]:
  """("loaded", ""), ("refused", the sentence) or ("raised", what else was raised)."""
  from placeto_tf.errors import PlacetoError

  try:
    kind.load(folder)
  except PlacetoError as error:
    text = str(error)
    return ("raised", f"not one line: {text}") if "\n" in text else ("refused", text)
  except Exception as error:  # what the fuzzing is to find
    return "raised", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
  return "loaded", ""


def _flipped(rng: random.Random, content: bytes) -> bytes:
  changed = bytearray(content)
  for _ in range(rng.choice((1, 1, 3, 20)) if changed else 0):
    changed[rng.randrange(len(changed))] = rng.randrange(256)
  return bytes(changed)


def _inserted(rng: random.Random, content: bytes) -> bytes:
  at = rng.randrange(len(content) + 1)
  return content[:at] + bytes(rng.randrange(256) for _ in range(rng.choice((1, 7)))) + content[at:]


def _cut(rng: random.Random, content: bytes) -> bytes:
  return content[:rng.randrange(len(content) + 1)]


def _repeated(rng: random.Random, content: bytes) -> bytes:
  first, last = sorted((rng.randrange(len(content) + 1), rng.randrange(len(content) + 1)))
  return content[:last] + content[first:last] * rng.choice((1, 3)) + content[last:]


def _zeroed(rng: random.Random, content: bytes) -> bytes:
  first, last = sorted((rng.randrange(len(content) + 1), rng.randrange(len(content) + 1)))
  return content[:first] + b"\0" * (last - first) + content[last:]


def _json_changed(rng: random.Random, content: bytes) -> bytes:
  if rng.random() < 0.02:
    return b"[" * 100_000 if rng.random() < 0.5 else b'{"a":' * 100_000
  try:
    value = json.loads(content)
  except (ValueError, RecursionError):
    return _flipped(rng, content)
  holder: Any = None
  key: Any = None
  at: Any = value
  while isinstance(at, (dict, list)) and at and rng.random() < 0.8:
    holder, key = at, rng.choice(sorted(at)) if isinstance(at, dict) else rng.randrange(len(at))
    at = holder[key]
  if holder is None:
    value = rng.choice(_VALUES)
  elif rng.random() < 0.2:
    del holder[key]
  elif rng.random() < 0.1 and isinstance(holder, dict):
    holder[f"{key}_{rng.randrange(9)}"] = at
  elif rng.random() < 0.1 and isinstance(holder, list):
    holder.append(at)
  else:
    holder[key] = rng.choice(_VALUES)
  text = json.dumps(value)
  if rng.random() < 0.05:
    text = text.replace('": ', '": NaN, "a": ', 1)
  if rng.random() < 0.05 and text.startswith("{") and len(text) > 2:
    text = text[:-1] + ", " + text[1:]  # every key twice
  return text.encode("utf-8", "surrogatepass")


def saved(save: Callable[[str], Any], *names: str) -> Dict[str, bytes]:
  """The files that `save` writes to a directory."""
  with tempfile.TemporaryDirectory() as folder:
    save(folder)
    return {name: _content(os.path.join(folder, name)) for name in names}


def _content(path: str) -> bytes:
  with open(path, "rb") as file:
    return file.read()


def _graph_and_cluster() -> Tuple[Any, Any]:
  from placeto_tf.clusters import Cluster
  from placeto_tf.graphs import load_graph

  return load_graph(GRAPH), Cluster.parse("k80:2")


def _placement() -> Kind:
  from placeto_tf.placements import Placement

  graph, cluster = _graph_and_cluster()
  placement = Placement.from_indices(
      graph, cluster, np.zeros(graph.num_ops, np.int32), method="single", seed=0, evaluations=1,
      step_time_us=1.5, lower_bound_us=1.0, peak_memory_bytes={"/GPU:0": 1},
      baselines={"current": {"step_time_us": 2.0, "fits": True}})

  def load(folder: str) -> None:
    Placement.load(os.path.join(folder, "placement.json")).indices(graph, cluster)

  return Kind(saved(lambda folder: placement.save(os.path.join(folder, "placement.json")),
                     "placement.json"), load)


def _cluster() -> Kind:
  from placeto_tf.clusters import Cluster

  cluster = Cluster.parse("k80:2+p100:1")
  return Kind(saved(lambda folder: cluster.save(os.path.join(folder, "cluster.json")),
                     "cluster.json"),
              lambda folder: Cluster.parse(os.path.join(folder, "cluster.json")))


def _costs() -> Kind:
  from cost_protos import to_op_performances
  from placeto_tf.costs import estimate_costs

  graph, cluster = _graph_and_cluster()
  content = to_op_performances(graph, estimate_costs(graph, cluster), cluster).SerializeToString()

  def load(folder: str) -> None:
    estimate_costs(graph, cluster, source=os.path.join(folder, "costs.pb"))

  return Kind({"costs.pb": content}, load)


def _feeds() -> Kind:
  file = io.BytesIO()
  np.savez(file, x=np.zeros((2, 3), np.float32), y=np.arange(4))
  return Kind({"feeds.npz": file.getvalue()}, lambda folder: user_files.read_arrays(
      os.path.join(folder, "feeds.npz"), what="the feeds file", remedy="expected an .npz"))


def _scorer_weights() -> Kind:
  from placeto_tf.policies.placeto.scorer import ScorerWeights

  return Kind(saved(ScorerWeights.untrained().save, "weights.json", "weights.npz"),
              ScorerWeights.load)


def _published_weights() -> Kind:
  from placeto_tf.policies.placeto.published.config import PublishedConfig
  from placeto_tf.policies.placeto.published.weights import PublishedWeights

  arrays = tuple(np.full((2, 3), i, np.float32) for i in range(4))
  weights = PublishedWeights(arrays, PublishedConfig(), 3, 48)
  return Kind(saved(weights.save, "weights.json", "weights.npz"), PublishedWeights.load)


def _run() -> Kind:
  import tensorflow as tf

  from placeto_tf.training import runs
  from placeto_tf.training.checkpoints import Checkpoints

  config = {"seed": 1, "graphs": ["a"], "learning_rate": 0.5}

  def save(folder: str) -> None:
    runs.claim(folder, config)
    checkpoints = Checkpoints(os.path.join(folder, "train"), {}, weights=tf.Variable([1.0, 2.0]))
    for iteration in (1, 2):
      checkpoints.save(iteration, {"iteration": iteration, "rng": [1, 2]})
    runs.finish(folder, 2, 0, {"loss": 0.5})

  def load(folder: str) -> None:
    runs.finished(folder, config)
    found = Checkpoints(os.path.join(folder, "train"), {}, weights=tf.Variable([0.0, 0.0]))
    assert found.restored, "the run was begun again"

  return Kind(saved(
      save, "config.json", "done.json", "train/checkpoint", "train/ckpt-1.index",
      "train/ckpt-1.data-00000-of-00001", "train/ckpt-2.index",
      "train/ckpt-2.data-00000-of-00001"), load)


def _results() -> Kind:
  from placeto_tf.evaluation import read_results
  from placeto_tf.evaluation.evaluate import COLUMNS

  row = ("a.meta", "k80:2", "single", "0", "30", "1.5", "True", "", "1", "0.25", "1.0", "64.0",
         "placements/a.json")
  files = {"results.csv": "\n".join([",".join(COLUMNS), *[",".join(row)] * 3, ""]).encode()}

  def load(folder: str) -> None:
    read_results(os.path.join(folder, "results.csv"))

  return Kind(files, load)


def _graph_set() -> Kind:
  from placeto_tf.encoding import graph_sets
  from placeto_tf.zoo import families

  families.FAMILIES.setdefault("tiny", tiny_family)
  config = graph_sets.GraphSetConfig(family="tiny", count=1, cluster="k80:2", max_groups=6)
  return Kind(saved(lambda folder: graph_sets.make_graph_set(config, folder), "graphs.json",
                     "graphs.tfrecord", "tiny_0000.meta"),
              lambda folder: graph_sets.make_graph_set(config, folder))


def tiny_family(rng: Any, index: int) -> str:
  """A graph of a family of small ones."""
  del rng
  return f"enas_recurrent:cell={index}:batch=2:steps=2:nodes=2:hidden=4:vocab=9"


def _study() -> Kind:
  import prediction_study as study

  row = {"placement": "00_single.json", "measured_us": 1.5, "steady": True, "failure": None}

  inner = study.graph_directory("", GRAPH)

  def load(folder: str) -> None:
    study.StudyConfig.load(os.path.join(folder, "study.json"))
    study.measured_rows(os.path.join(folder, inner, "measured.jsonl"))
    study.predicted_us(os.path.join(folder, inner))

  names = [f"{number:02d}_op.json" for number in range(4)]
  return Kind({
      "study.json": json.dumps({"graphs": [GRAPH], "placements": 4, "seed": 1}).encode(),
      f"{inner}/measured.jsonl": "".join(
          json.dumps({**row, "placement": name}) + "\n" for name in names).encode(),
      f"{inner}/predicted.json": json.dumps(dict.fromkeys(names, 1.5)).encode()}, load)


def _manifest() -> Kind:
  from placeto_tf.files.outputs import MANIFEST, ResultDirectory

  def save(folder: str) -> None:
    with ResultDirectory(folder) as results:
      with open(os.path.join(results.path, "report.json"), "w", encoding="utf-8") as file:
        file.write("{}\n")
      results.publish()

  def load(folder: str) -> None:
    with ResultDirectory(folder) as results:
      results.claim(["report.json"])

  return Kind(saved(save, MANIFEST, "report.json"), load)


def _cached_costs() -> Kind:
  """An entry with the digest that its writer would give it, so that its content is read."""
  from placeto_tf.costs import cache
  from placeto_tf.costs.estimate import work_of

  graph, _ = _graph_and_cluster()
  work = work_of(graph, cache=False)

  with tempfile.TemporaryDirectory() as folder:
    cache.store(folder, "key", work)
    sound = _content(cache.path_of(folder, "key"))[hashlib.sha256().digest_size:]

  def load(folder: str) -> None:
    entry = os.path.join(folder, "entry")
    if os.path.isfile(entry) and os.path.getsize(entry) < 2**30:
      content = _content(entry)
      with open(cache.path_of(folder, "key"), "wb") as file:
        file.write(hashlib.sha256(content).digest() + content)
    elif os.path.lexists(entry):
      os.rename(entry, cache.path_of(folder, "key"))
    if cache.load(folder, "key", graph) is None:
      raise PlacetoError("the entry is dropped")

  return Kind({"entry": sound}, load)


def _keras(name: str) -> Kind:
  """A model in the format of the name's suffix, by the Keras that TensorFlow has."""
  import tensorflow as tf

  from placeto_tf.graphs import keras_files

  layers = tf.keras.layers
  model = tf.keras.Sequential([layers.Input([3]), layers.Dense(2, "relu"), layers.Dense(1)])
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # HDF5 is no longer the format of choice
    files = saved(lambda folder: model.save(os.path.join(folder, name)), name)
  return Kind(files, lambda folder: keras_files.load_model(os.path.join(folder, name)))


def clear(folder: str) -> None:
  """Empties a folder. What is in it may be no file."""
  for name in os.listdir(folder):
    path = os.path.join(folder, name)
    if os.path.isdir(path) and not os.path.islink(path):
      shutil.rmtree(path)
    else:
      os.unlink(path)
