"""Cache of counted work on disk, for graphs whose costs were estimated before.

An entry holds the `OpWork` of one graph as NumPy arrays, in a zip file with checksums, or the
result of a look at its step as JSON. The key covers all inputs of the counts: the order of the ops,
their NodeDefs with the bound shapes, the trip counts of loops, TensorFlow's version, and `_FORMAT`.
With a look, the key also covers the values of variables (`look.identity`). Work does not depend on
devices, so one entry serves every cluster.

Entries are written under another name and renamed. A damaged entry counts as missing, and an entry
that cannot be written is left out, because a cache must never make a run fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
from typing import Any, Dict, Mapping, Optional, Union

import numpy as np

from placeto_tf.costs.look import Seen
from placeto_tf.costs.work import OpWork
from placeto_tf.errors import CostError, PlacetoError
from placeto_tf.files import outputs, user_files
from placeto_tf.graphs.computation_graph import ComputationGraph

_FORMAT = 14  # increase it whenever ops are counted differently
_MAX_ENTRIES = 100  # a few hundred kB each
_SUFFIX, _SEEN_SUFFIX = ".work", ".seen"
_READING: Mapping[str, Any] = {"what": "the cached work", "remedy": "remove it"}
_DTYPES = {"launches": bool, "launches_on_gpu": bool, "product_types": np.int32}
_TEXTS = ("notes", "unknown", "unsure")


def default_folder() -> str:
  """Returns `placeto_tf/costs` in the user's cache folder, which XDG_CACHE_HOME names."""
  return outputs.cache_folder("costs")


def key_of(graph: ComputationGraph, graph_def: Any) -> str:
  """Returns a hex digest that differs between graphs of different work.

  Args:
    graph: the ops, their order and the rounds of loops.
    graph_def: their NodeDefs, with bound shapes.

  Returns:
    40 hex digits.
  """
  from tensorflow import version

  digest = hashlib.sha256(f"{_FORMAT}\0{version.VERSION}\0{graph.fingerprint}\0".encode())
  digest.update(repr(graph.source and graph.source.trip_count).encode())
  digest.update(graph.executions.tobytes())
  digest.update(graph_def.SerializeToString(deterministic=True))
  return digest.hexdigest()[:40]


def load(folder: str, key: str, graph: ComputationGraph) -> Optional[OpWork]:
  """Reads an entry of counted work.

  Args:
    folder: of the cache.
    key: of the graph, from `key_of`.
    graph: the ops that the work has to fit.

  Returns:
    The work, or None where there is no entry that fits the graph.
  """
  path = os.path.join(folder, key + _SUFFIX)
  try:
    arrays: Dict[str, Any] = user_files.read_arrays(path, **_READING)
    texts = json.loads(str(arrays.pop("texts")))
    work = OpWork(**arrays, **{**texts, "notes": tuple(texts["notes"])})
    os.utime(path)  # the oldest entries are removed first
  except (PlacetoError, OSError, ValueError, KeyError, TypeError):
    return None
  # An entry of a format that was not raised, or of another graph, has other shapes or types.
  fits = all(
      array.shape == ((graph.num_outputs if name == "output_bytes" else graph.num_ops),)
      and array.dtype == _DTYPES.get(name, np.float64)
      and bool(np.all(np.isfinite(array) & (array >= 0)))
      for name, array in arrays.items())
  return work if fits else None


def load_seen(folder: str, key: str) -> Union[Seen, str, None]:
  """Reads an entry of a look at a step.

  Args:
    folder: of the cache.
    key: of the graph and its variables, from `key_of` and `look.identity`.

  Returns:
    The result of the look, the reason why it failed, or None if there is no entry.
  """
  path = os.path.join(folder, key + _SEEN_SUFFIX)
  try:
    found = user_files.read_json(path, **_READING)
    os.utime(path)
    return Seen(**found) if isinstance(found, dict) else found
  except (PlacetoError, OSError, TypeError):
    return None


def store_seen(folder: str, key: str, seen: Union[Seen, str]) -> None:
  """Writes an entry of a look at a step; an entry that cannot be written is left out.

  Args:
    folder: of the cache.
    key: of the graph and its variables, from `key_of` and `look.identity`.
    seen: the result of the look, or the reason why it failed.
  """
  found = seen if isinstance(seen, str) else dataclasses.asdict(seen)
  _write(folder, key, _SEEN_SUFFIX, json.dumps(found).encode())


def store(folder: str, key: str, work: OpWork) -> None:
  """Writes an entry of counted work, and removes the least recently used ones of too many.

  Args:
    folder: of the cache.
    key: of the graph, from `key_of`.
    work: of the graph.
  """
  content = io.BytesIO()
  fields = {field.name: getattr(work, field.name) for field in dataclasses.fields(work)}
  texts = {name: fields.pop(name) for name in _TEXTS}
  np.savez_compressed(content, texts=np.array(json.dumps(texts)), **fields)
  _write(folder, key, _SUFFIX, content.getvalue())


def _write(folder: str, key: str, suffix: str, content: bytes) -> None:
  with contextlib.suppress(OSError, CostError):
    os.makedirs(folder, exist_ok=True)
    outputs.write(os.path.join(folder, key + suffix), content, error_type=CostError)
    entries = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(suffix)]
    # The most recently used entries are last, and are kept.
    for path in sorted(entries, key=os.path.getmtime)[:-_MAX_ENTRIES]:
      os.unlink(path)
