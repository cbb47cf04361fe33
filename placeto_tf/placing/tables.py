"""Makes the comparison of placers as text for a terminal, and as HTML for a notebook.

A result is a `PlacingResult`. Its class is not imported, because the class uses this module.
"""

from __future__ import annotations

import base64
from html import escape
from typing import Any, Dict, List, Optional

import pandas as pd

from placeto_tf.costs import look
from placeto_tf.errors import counted, option
from placeto_tf.graphs.shapes import ASSUMED
from placeto_tf.placing import registry
from placeto_tf.placing.explaining import LEAST_US, ms_text, three_digits
from placeto_tf.placing.registry import DATA_PARALLEL

_MOST_COLUMNS = 16  # lines with more devices would be too long to read
NOTHING_TO_GAIN = 0.01  # share of the step time; for a smaller gain, ops need not be moved


def table(result: Any, *, verbose: bool = False) -> str:
  """Returns the comparison that the terminal shows.

  Args:
    result: a `PlacingResult`.
    verbose: whether every placer has a row, with its gain and evaluations. Otherwise the table has
      rows only for the unplaced graph, the baselines, and the requested placer.
  """
  replication = result.replication
  parts = [caveats(result), [] if replication is None else replica_table(replication),
           _align(frame(result, verbose)), last_lines(result)]
  return "\n\n".join("\n".join(part) for part in parts if part)


def caveats(result: Any) -> List[str]:
  """Returns lines on what is unknown; the first one also says which replicas are unchecked."""
  said, lines = unchecked(result), unknowns(result)
  return [" ".join(filter(None, (*lines[:1], said))), *lines[1:]] if said else lines


def unknowns(result: Any) -> List[str]:
  """Returns lines on what was assumed or is unknown, a batch that grew, and too small a step."""
  lines, unknown = [], result.costs.unknown
  lines += [f"{note[0].upper()}{note[1:]}." for note in result.notes if note.startswith(ASSUMED)]
  if unknown:
    notes = " ".join(result.costs.notes)
    # look="yes" is no remedy where a run was tried in vain, or leaves shapes unknown.
    other = next((f"measured costs ({tried})" for tried in (look.FAILED, look.RAN)
                  if tried in notes),
                 f"{option('look', 'yes')} to run the step once here and see them")
    rounds = f"{option('trip_count')}, or " if "rounds of" in unknown else ""
    lines.append(f"At least {ms_text(result.step_time_us)}: {unknown}; give {rounds}{other}.")
  grown = None if result.replication is None else result.replication.grown
  if grown is not None:
    lines.append(
        f"The batch grew from {grown[1]:,} to {grown[0]:,} examples a step: it is part of the "
        f"graph's shapes, and each of {result.replication.chosen.replicas} replicas has it whole. "
        f"Speed-ups are per example: rows below are for {grown[0]:,} examples.")
  if result.small_step:
    lines.append(f"The step is {result.small_step}.")
  return lines


def unchecked(result: Any) -> str:
  """Returns a line if the placed replicas were not, or not all compared with the graph, or ""."""
  check = result.replication and result.replication.check
  if result.replicated is None or check and check.checked and not check.left_out:
    return ""
  how, why = ("", check or "not checked, as asked") if not check or not check.checked else (
      " fully", f"{check.left_out}, for lack of time")
  return f"{result.replicated.strategy} replicas were not{how} compared with the graph: {why}."


def html(result: Any) -> str:
  """Returns the comparison and the picture of the step, for a notebook."""
  first, last = ([f"<p>{escape(line)}</p>" for line in lines] for lines in (
      caveats(result), last_lines(result)))
  image = base64.b64encode(result.picture).decode()
  return "\n".join([
      *first, frame(result).to_html(index=False, border=0), *last,
      '<img style="max-width: 100%" alt="One simulated step, by device" '
      f'src="data:image/png;base64,{image}">'])


def frame(result: Any, verbose: bool = False) -> pd.DataFrame:
  """Returns the cells of the table as texts.

  Returns:
    A row for each placer, for the best placement, and for the lower bound.
  """
  known = {method.name: method for method in registry.methods(controls=True)}
  cluster = result.cluster
  current_us = result.baselines["current"].step_time_us
  many = cluster.num_devices > _MOST_COLUMNS
  memory = ["GiB at most"] if many else [f"GiB {device.name}" for device in cluster.devices]

  # The references come first, the others in the order in which they ran.
  references = [method.name for method in registry.references()] + [DATA_PARALLEL]
  placers = [name for name in sorted(result.baselines, key=lambda name: name not in references)
             if verbose or name in (*references, result.config.method)]
  rows: List[Dict[str, str]] = []
  for name in [*placers, "best"]:
    method, row = known.get(name), result.baselines.get(name, result)
    title = name.replace("_", " ")  # data parallelism and the best are no methods
    rows.append({"placer": title if method is None else method.title or name})
    if row.step_time_us is None:
      continue
    # With many devices, show one column, for the fullest device.
    held = [row.peak_memory_bytes.max()] if many else row.peak_memory_bytes
    gain_us = getattr(row, "gain_us", 0.0)
    rows[-1].update({
        "step time": ms_text(row.step_time_us), "speed-up": _times(current_us, row.step_time_us),
        "gained": ms_text(gain_us) if gain_us else "", "evaluations": f"{row.evaluations:,}",
        "fits": "yes" if row.fits else "no",
        **{name: f"{each / 2**30:.2f}" for name, each in zip(memory, held)}})
  found = pd.DataFrame(rows).fillna("-")
  # The last row has a bound and no placement.
  found.loc[len(found)] = {
      "placer": "lower bound", "step time": ms_text(result.lower_bound_us),
      "speed-up": _times(current_us, result.lower_bound_us)}
  return found.fillna("").drop(columns=[] if verbose else ["gained", "evaluations"])


def last_lines(result: Any) -> List[str]:
  """Returns the lines below the table."""
  return [verdict(result), *filter(None, [result.accuracy]),
          f"What bounds the step: {result.explanation}.",
          *(f"Note: {note}" for note in result.notes if not note.startswith(ASSUMED))]


def replica_table(replication: Any) -> List[str]:
  """Returns a table with a row for each replication strategy and for data parallelism."""
  # The strategy that was placed has a remark in its row.
  chosen = replication.chosen.strategy if replication.chosen is not None else "1"
  entries = {**replication.rows, "data parallelism": replication.data_parallel,
             "the same, by process": replication.process_parallel}
  rows = [{
      "replicas": strategy, "global batch": f"{row.global_batch:,}" if row.global_batch else "-",
      "step time": ms_text(row.step_time_us),
      "examples/s": three_digits(row.examples_per_second) if row.global_batch else "-",
      "fits": "yes" if row.fits else "no",
      "GiB at most": f"{row.peak_memory_bytes.max() / 2**30:.2f}",
      "evaluations": f"{row.evaluations:,}",
      "": "; ".join(filter(None, ("placed" if strategy == chosen else row.dropped, row.check)))}
          for strategy, row in entries.items() if row is not None]
  # Strategies that could not be made share a row per reason.
  for why in dict.fromkeys(replication.not_made.values()):
    strategies = [strategy for strategy, other in replication.not_made.items() if other == why]
    rows.append({"replicas": ", ".join(strategies), "": f"not tried: {why}"})
  return _align(pd.DataFrame(rows).fillna("-"))


def verdict(result: Any) -> str:
  """Returns one or two sentences on the gain, or a sentence that there is nothing to gain.

  A requested replication strategy can be slower than the unplaced graph; then there is a loss.
  """
  current = result.baselines["current"]
  bound = ("no placement is faster, as was proven" if result.proven
           else f"at most {above(result):.1%} above the best possible in the simulator")
  stopped = f" The search ended after {result.seconds:.1f} s: {result.ended}." if (
      result.ended) else ""
  if not current.fits:
    return (f"The current placement does not fit in memory; the one found does and takes "
            f"{ms_text(result.step_time_us)} a step ({bound}).{stopped}")
  gain = 1 - ratio(result.step_time_us, current.step_time_us) if current.step_time_us else 0.0
  if abs(gain) < NOTHING_TO_GAIN:
    return (f"Nothing to gain was found: the graph already takes {ms_text(current.step_time_us)} a "
            f"step, the best placement found {ms_text(result.step_time_us)}; {bound}.{stopped}")
  return (f"A step takes {ms_text(result.step_time_us)} instead of {ms_text(current.step_time_us)} "
          f"({ratio(current.step_time_us, result.step_time_us):.2f}x) after "
          f"{counted(result.evaluations, 'placement')} evaluated; {bound}.{stopped}")


def above(result: Any) -> float:
  """Returns the share by which a step time is above its lower bound."""
  return max(0.0, result.step_time_us / max(result.lower_bound_us, 1e-9) - 1)


def ratio(over: Optional[float], under: Optional[float]) -> float:
  """Returns a speed-up.

  Args:
    over, under: step times in us, or None.

  Returns:
    Their ratio, with times of at least `LEAST_US`; NaN if a time is unknown.
  """
  return max(over, LEAST_US) / max(under, LEAST_US) if over and under else float("nan")


def _times(over: Optional[float], under: Optional[float]) -> str:
  return f"{ratio(over, under):.2f}x" if over and under else "-"


def _align(found: pd.DataFrame) -> List[str]:
  """Returns the lines of a table, with a rule below the titles.

  Text is aligned to the left, numbers are aligned to the right.
  """
  cells = [list(found), *found.to_numpy().tolist()]
  # Of each column, title included.
  widths = [max(map(len, column)) for column in zip(*cells)]
  lines = ["  ".join(cell.rjust(width) if j and cells[0][j] else cell.ljust(width)
                     for j, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in cells]
  return [lines[0], "-" * len(lines[0]), *lines[1:]]
