"""Cache of counted work on disk, for graphs whose costs were estimated before.

An entry holds the `OpWork` of one graph as NumPy arrays, in a zip file with checksums. The key
covers all inputs of the counts: the order of the ops, their NodeDefs with the bound shapes, the
trip counts of loops, TensorFlow's version, and `_FORMAT`. Work that was counted with a look at the
step has a key that also covers the values of variables (`look.identity`). Work does not depend on
devices, so one entry serves every cluster.

Entries are written under another name and renamed. A damaged entry counts as missing, and an entry
that cannot be written is left out, because a cache must never make a run fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from typing import Any, Dict, Optional

import numpy as np

from placeto_tf.costs.work import OpWork
from placeto_tf.errors import CostError, PlacetoError
from placeto_tf.files import outputs, user_files
from placeto_tf.graphs.computation_graph import ComputationGraph

_FORMAT = 23  # increase it whenever ops are counted differently
_MAX_ENTRIES = 100  # a few hundred kB each
_SUFFIX = ".work"


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


def load(folder: Optional[str], key: str) -> Optional[OpWork]:
  """Reads an entry.

  Args:
    folder: of the cache; None for no cache.
    key: of the graph, from `key_of`.

  Returns:
    The work, or None where there is no entry.
  """
  if folder is None:
    return None
  path = os.path.join(folder, key + _SUFFIX)
  try:
    fields: Dict[str, Any] = user_files.read_arrays(
        path, what="the cached work", remedy="remove it")
    os.utime(path)  # the oldest entries are removed first
    # Fields that are no arrays were written as arrays of texts, a text, and a number.
    fields.update(notes=tuple(fields["notes"].tolist()), unknown=str(fields["unknown"]),
                  unsure=bool(fields["unsure"]))
    return OpWork(**fields)
  except (PlacetoError, OSError, KeyError, TypeError):
    return None


def store(folder: Optional[str], key: str, work: OpWork) -> None:
  """Writes an entry, and removes the least recently used ones of too many.

  Args:
    folder: of the cache; None for no cache.
    key: of the graph, from `key_of`.
    work: of the graph.
  """
  if folder is None:
    return
  content = io.BytesIO()
  np.savez_compressed(content, **vars(work))
  with contextlib.suppress(OSError, CostError):
    os.makedirs(folder, exist_ok=True)
    outputs.write(os.path.join(folder, key + _SUFFIX), content.getvalue(), error_type=CostError)
    entries = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(_SUFFIX)]
    # The most recently used entries are last, and are kept.
    for path in sorted(entries, key=os.path.getmtime)[:-_MAX_ENTRIES]:
      os.unlink(path)
