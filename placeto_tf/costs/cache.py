"""Cache of counted work on disk, for graphs whose costs were estimated before.

An entry holds the SHA-256 of what follows, and the `OpWork` of one graph as NumPy arrays. Its key
covers all that the counts depend on: the ops' order, their NodeDefs with the bound shapes, the
rounds of loops, TensorFlow's version, and `_FORMAT`. Work does not depend on devices, so one entry
serves every cluster.

Entries are written beside and renamed; one that is not what was written counts as missing, and one
that cannot be written is done without: a cache must never be the reason that something fails.
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
from typing import Any, Optional

import numpy as np

from placeto_tf.costs.work import OpWork
from placeto_tf.errors import CostError, PlacetoError
from placeto_tf.graphs import atomic, private_folder, user_files
from placeto_tf.graphs.computation_graph import ComputationGraph

_FORMAT = 7  # to be raised whenever ops are counted differently
_MAX_ENTRIES = 100  # a few hundred kB each
_SUFFIX = ".work"
_DIGEST_BYTES = 32
_MOST_BYTES = 256 * 2**20
_DTYPES = {"launches": bool, "launches_on_gpu": bool, "product_types": np.int32}
_ARRAYS = tuple(field.name for field in dataclasses.fields(OpWork) if field.name != "notes")


def default_folder() -> str:
  """`placeto_tf/costs` in the user's cache folder, which XDG_CACHE_HOME names."""
  return private_folder.cache_folder("costs")


def key_of(graph: ComputationGraph, graph_def: Any) -> str:
  """Hex digest that differs between graphs of different work."""
  from tensorflow import version

  digest = hashlib.sha256(f"{_FORMAT}\0{version.VERSION}\0{graph.fingerprint}\0".encode())
  digest.update(graph.executions.tobytes())
  digest.update(graph_def.SerializeToString(deterministic=True))
  return digest.hexdigest()[:40]


def path_of(folder: str, key: str) -> str:
  """Where an entry is."""
  return os.path.join(folder, key + _SUFFIX)


def load(folder: str, key: str, graph: ComputationGraph) -> Optional[OpWork]:
  """The entry, or None where there is none that fits the graph."""
  path = path_of(folder, key)
  try:
    content = user_files.read_bytes(
        path, what="the cached work", remedy="remove it", most_bytes=_MOST_BYTES)
    digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
      return None
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
      arrays = {name: file[name] for name in _ARRAYS}
      notes = tuple(json.loads(str(file["notes"])))
  except (PlacetoError, OSError, ValueError, KeyError, EOFError, TypeError, AttributeError,
          NotImplementedError, zipfile.BadZipFile, zlib.error):
    return None
  fits = all(
      array.shape == ((graph.num_outputs if name == "output_bytes" else graph.num_ops),)
      and array.dtype == _DTYPES.get(name, np.float64)
      and bool(np.all(np.isfinite(array) & (array >= 0)))
      for name, array in arrays.items())
  if not fits or not all(isinstance(note, str) and note.isprintable() for note in notes):
    return None
  with contextlib.suppress(OSError):
    os.utime(path)  # the oldest entries go first
  return OpWork(**arrays, notes=notes)


def store(folder: str, key: str, work: OpWork) -> None:
  """Writes an entry, and removes the least recently used ones where there are too many."""
  content = io.BytesIO()
  np.savez_compressed(
      content, notes=np.array(json.dumps(work.notes)),
      **{name: getattr(work, name) for name in _ARRAYS})
  with contextlib.suppress(OSError, CostError):
    os.makedirs(folder, exist_ok=True)
    atomic.write(
        path_of(folder, key),
        hashlib.sha256(content.getvalue()).digest() + content.getvalue(), error_type=CostError)
    entries = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(_SUFFIX)]
    for path in sorted(entries, key=os.path.getmtime)[:-_MAX_ENTRIES]:
      os.unlink(path)
