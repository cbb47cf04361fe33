"""Cache of counted work on disk, for graphs whose costs were estimated before.

An entry holds the `OpWork` of one graph as NumPy arrays, in a zip file with checksums, or the
result of a look at its step as JSON. The key covers all inputs of the counts: the order of the ops,
their NodeDefs with the bound shapes, the trip counts of loops, the result of a look, TensorFlow's
version, and `_FORMAT`. Work does not depend on devices, so one entry serves every cluster.

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
import zipfile
import zlib
from typing import Any, Optional, Union

import numpy as np

from placeto_tf.costs.look import Seen
from placeto_tf.costs.work import OpWork
from placeto_tf.errors import CostError, PlacetoError
from placeto_tf.files import outputs, user_files
from placeto_tf.graphs.computation_graph import ComputationGraph

_FORMAT = 13  # increase it whenever ops are counted differently
_MAX_ENTRIES = 100  # a few hundred kB each
_SUFFIX, _SEEN_SUFFIX = ".work", ".seen"
_MOST_BYTES = 256 * 2**20
_DTYPES = {"launches": bool, "launches_on_gpu": bool, "product_types": np.int32}
_TEXTS = ("notes", "unknown", "unsure")
_ARRAYS = tuple(field.name for field in dataclasses.fields(OpWork) if field.name not in _TEXTS)


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
  content = _read(os.path.join(folder, key + _SUFFIX))
  if content is None:
    return None
  try:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
      arrays = {name: file[name] for name in _ARRAYS}
      notes, unknown, unsure = json.loads(str(file["texts"]))
  except (PlacetoError, OSError, ValueError, KeyError, EOFError, TypeError, AttributeError,
          NotImplementedError, zipfile.BadZipFile, zlib.error):
    return None
  # An entry of a format that was not raised, or of another graph, has other shapes or types.
  fits = all(
      array.shape == ((graph.num_outputs if name == "output_bytes" else graph.num_ops),)
      and array.dtype == _DTYPES.get(name, np.float64)
      and bool(np.all(np.isfinite(array) & (array >= 0)))
      for name, array in arrays.items())
  if not fits or not isinstance(notes, list) or not all(
      isinstance(note, str) and note.isprintable() for note in (*notes, unknown)):
    return None
  return OpWork(**arrays, notes=tuple(notes), unknown=unknown, unsure=bool(unsure))


def load_seen(folder: str, key: str) -> Union[Seen, str, None]:
  """Reads an entry of a look at a step.

  Args:
    folder: of the cache.
    key: of the graph, from `key_of`.

  Returns:
    The result of the look, the reason why it failed, or None if there is no entry.
  """
  content = _read(os.path.join(folder, key + _SEEN_SUFFIX))
  try:
    found = json.loads(content) if content is not None else None
    return Seen(**found) if isinstance(found, dict) else found
  except (ValueError, TypeError):
    return None


def store_seen(folder: str, key: str, seen: Union[Seen, str]) -> None:
  """Writes an entry of a look at a step; an entry that cannot be written is left out.

  Args:
    folder: of the cache.
    key: of the graph, from `key_of`.
    seen: the result of the look, or the reason why it failed.
  """
  found = seen if isinstance(seen, str) else dataclasses.asdict(seen)
  _write(folder, key, _SEEN_SUFFIX, json.dumps(found).encode())


def _read(path: str) -> Optional[bytes]:
  """Reads the content of an entry; None if it is missing or damaged."""
  try:
    content = user_files.read_bytes(
        path, what="the cached work", remedy="remove it", most_bytes=_MOST_BYTES)
  except (PlacetoError, OSError):
    return None
  with contextlib.suppress(OSError):
    os.utime(path)  # the oldest entries are removed first
  return content


def store(folder: str, key: str, work: OpWork) -> None:
  """Writes an entry of counted work, and removes the least recently used ones of too many.

  Args:
    folder: of the cache.
    key: of the graph, from `key_of`.
    work: of the graph.
  """
  content = io.BytesIO()
  np.savez_compressed(
      content, texts=np.array(json.dumps([getattr(work, name) for name in _TEXTS])),
      **{name: getattr(work, name) for name in _ARRAYS})
  _write(folder, key, _SUFFIX, content.getvalue())


def _write(folder: str, key: str, suffix: str, content: bytes) -> None:
  with contextlib.suppress(OSError, CostError):
    os.makedirs(folder, exist_ok=True)
    outputs.write(os.path.join(folder, key + suffix), content, error_type=CostError)
    entries = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(suffix)]
    # The most recently used entries are last, and are kept.
    for path in sorted(entries, key=os.path.getmtime)[:-_MAX_ENTRIES]:
      os.unlink(path)
