"""How the best of a run came down: what `evaluate` keeps of each row beside results.csv."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import user_files


def read_history(row: Dict[str, Any], out: str) -> List[List[float]]:
  """[evaluations, seconds, objective in us] at each improvement of a row's run.

  Raises:
    PlacetoError: the file is missing or damaged.
  """
  stem = os.path.splitext(os.path.basename(row["placement"]))[0]
  path = os.path.join(out, "histories", f"{stem}.json")
  remedy = "delete the row to run it again"
  history = user_files.read_json(path, what="the history", remedy=remedy)
  if not isinstance(history, list) or not history or not all(
      isinstance(entry, list) and len(entry) == 3 and all(
          isinstance(value, (int, float)) for value in entry) for entry in history):
    raise PlacetoError(f"{path!r} holds something else than a history; {remedy}")
  return history
