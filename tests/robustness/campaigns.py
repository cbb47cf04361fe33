"""Long series of trials: a line of JSON for each, so that a series that is stopped goes on."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple

from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import user_files

Trial = Dict[str, Any]  # "kind", "number", "outcome", "text", "seconds"


class Log:
  """Trials that were made, in a file or in memory alone.

  Attributes:
    trials: (kind, number) -> trial.
  """

  def __init__(self, path: Optional[str]):
    """Reads what there is. Args: path: of the file; None: nothing is kept.

    Raises:
      PlacetoError: the file cannot be read, or holds something else.
    """
    self._path = path
    self.trials: Dict[Tuple[str, int], Trial] = {}
    if path and os.path.lexists(path):
      text = user_files.read_text(path, what="the log", remedy="choose another one")
      for line in text[:text.rfind("\n") + 1].splitlines():
        try:
          trial = json.loads(line)
          self.trials[trial["kind"], trial["number"]] = trial
        except (ValueError, KeyError, TypeError):
          raise PlacetoError(
              f"{path!r} holds a line that is no trial; choose another log") from None
      with open(path, "w", encoding="utf-8") as file:  # without a line that was cut off
        file.writelines(json.dumps(trial) + "\n" for trial in self.trials.values())

  def add(self, trial: Trial) -> None:
    """Takes a trial in; one of the same kind and number is replaced."""
    self.trials[trial["kind"], trial["number"]] = trial
    if self._path:
      with open(self._path, "a", encoding="utf-8") as file:
        file.write(json.dumps(trial) + "\n")

  def missing(self, kind: str, numbers: range) -> List[int]:
    """Numbers that were not tried."""
    return [number for number in numbers if (kind, number) not in self.trials]

  def of(self, kind: str, numbers: range) -> Iterator[Trial]:
    """The trials of a kind, in their order."""
    for number in numbers:
      if (kind, number) in self.trials:
        yield self.trials[kind, number]


def table(trials: List[Trial], outcomes: Tuple[str, ...], head: str) -> str:
  """Markdown: a row for each kind, with how often each outcome was had. Args: head: of kinds."""
  rows = [f"| {head} | " + " | ".join((*outcomes, "all", "slowest")) + " |",
          "|---|" + "---:|" * (len(outcomes) + 2)]
  for kind in dict.fromkeys(trial["kind"] for trial in trials):
    mine = [trial for trial in trials if trial["kind"] == kind]
    counts = [sum(trial["outcome"] == outcome for trial in mine) for outcome in outcomes]
    rows.append(f"| {kind} | " + " | ".join(f"{count:,}" for count in (*counts, len(mine)))
                + f" | {max(trial['seconds'] for trial in mine):.1f} s |")
  return "\n".join(rows)
