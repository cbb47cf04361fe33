"""The comparison of placers as text and as HTML: what a terminal and a notebook show of a result.

A result is a `PlacingResult`; its class is not imported, because it shows itself by this module.

Legend: D devices.
"""

from __future__ import annotations

import base64
from html import escape
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.placing import registry
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.registry import DATA_PARALLEL
from placeto_tf.problem import search_log
from placeto_tf.simulation import timeline

_MOST_COLUMNS = 16  # a line of more devices is too long to read
NOTHING_TO_GAIN = 0.01  # a smaller gain than this share is not worth moving ops for


def table(result: Any, *, verbose: bool = False) -> str:
  """The comparison that the terminal shows.

  Args:
    result: a `PlacingResult`.
    verbose: whether every placer that took part has a row, with its gain and evaluations, and every
      one that did not run has a note. Otherwise the table has the rows to compare the answer with:
      the graph as it is, the baselines, and the placer that was asked for by name.
  """
  found = _align(_rows(result, verbose))
  found.insert(1, "-" * max(map(len, found)))
  if result.replication is not None:
    found[:0] = [*replica_table(result.replication), ""]
  if result.caveat:
    found[:0] = [result.caveat[:1].upper() + result.caveat[1:] + ".", ""]
  return "\n".join([*found, "", *_lines(result, verbose)])


def html(result: Any) -> str:
  """The comparison and the timeline of the step, for a notebook."""
  def row(cells: List[str], kind: str) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

  titles, *others = _rows(result, verbose=False)
  caveat = [f"<p>{escape(result.caveat)}</p>"] if result.caveat else []
  found = [*caveat, "<table>", row(titles, "th"), *(row(cells, "td") for cells in others),
           "</table>",
           *(f"<p>{escape(line)}</p>" for line in _lines(result, verbose=False))]
  if result.graph.num_ops <= timeline.MAX_PICTURED_OPS:
    png = timeline.timeline_png(result.simulated, title=title(result))
    found.append('<img style="max-width: 100%" alt="One simulated step, by device" '
                 f'src="data:image/png;base64,{base64.b64encode(png).decode()}">')
  return "\n".join(found)


def _shown(result: Any, verbose: bool) -> Tuple[List[str], List[str]]:
  """Placers in the order of the table: all, and those that have a row."""
  references = [method.name for method in registry.references()] + [DATA_PARALLEL]
  # The references come first, the others in the order in which they ran.
  order = sorted(result.baselines, key=lambda name: name not in references)
  wanted = (*references, result.config.method)
  return order, [name for name in order if verbose or name in wanted]


def _titles() -> Dict[str, str]:
  return {**{method.name: method.title for method in registry.methods(controls=True)},
          DATA_PARALLEL: "data parallelism"}


def _rows(result: Any, verbose: bool) -> List[List[str]]:
  """The cells of the table, titles first."""
  titles = _titles()
  current_us = result.baselines["current"].step_time_us
  rows = [["placer", "step time", "speed-up", *(("gained", "evaluations") if verbose else ()),
           "fits", *_memory_titles(result.cluster)]]
  for name in _shown(result, verbose)[1]:
    row = result.baselines[name]
    work = [_ms(row.gain_us) if row.gain_us else "", f"{row.evaluations:,}"] if verbose else []
    rows.append([titles[name]] + (
        ["-"] * (len(rows[0]) - 1) if row.step_time_us is None else
        _cells(row.step_time_us, current_us, row.fits, row.peak_memory_bytes, work)))
  rows.append(["best"] + _cells(
      result.step_time_us, current_us, result.fits, result.peak_memory_bytes,
      ["", f"{result.evaluations:,}"] if verbose else []))
  bound = ["lower bound", _ms(result.lower_bound_us), _times(current_us, result.lower_bound_us)]
  return [*rows, bound + [""] * (len(rows[0]) - len(bound))]


def _lines(result: Any, verbose: bool) -> List[str]:
  """What is said below the table."""
  titles, (order, shown) = _titles(), _shown(result, verbose)
  lines = [verdict(result), f"What bounds the step: {result.explanation.causes}."]
  for name in order:
    skipped = result.baselines[name].skipped
    # Placers for which there was no time left matter only to readers of the whole table.
    if skipped and (name in shown or skipped not in search_log.ORDINARY_REASONS):
      lines.append(f"Note: {titles[name]} did not run: {skipped}.")
  return lines + [f"Note: {note}" for note in result.notes]


def replica_table(replication: Any) -> List[str]:
  """Lines of a table with a row for each form of replicas, and one for data parallelism."""
  rows = [["replicas", "global batch", "step time", "examples/s", "fits", "GB at most",
           "evaluations", ""]]

  def add(title, batch, step_time_us, fits, peak_memory_bytes, evaluations, said):
    rate = f"{batch / step_time_us * 1e6:,.1f}" if batch else "-"
    rows.append([title, f"{batch:,}" if batch else "-", _ms(step_time_us), rate,
                 "yes" if fits else "no", f"{peak_memory_bytes.max() / 2**30:.2f}", evaluations,
                 said])

  chosen = replication.chosen.form if replication.chosen is not None else "1"
  for form, row in replication.rows.items():
    add(form, row.global_batch, row.step_time_us, row.fits, row.peak_memory_bytes,
        f"{row.evaluations:,}", "; ".join(filter(None, (
            "placed" if form == chosen else row.dropped, row.check))))
  found = replication.data_parallel
  if found is not None:
    add("data parallelism", replication.data_parallel_batch, found.step_time_us, found.fits,
        found.peak_memory_bytes, "1", "mirrored variables, ring all-reduce")
  for why in dict.fromkeys(replication.not_made.values()):
    forms = [form for form, other in replication.not_made.items() if other == why]
    rows.append([", ".join(forms), *["-"] * 6, f"not tried: {why}"])
  lines = _align(rows)
  lines.insert(1, "-" * len(lines[0]))
  return [*batch_lines(replication), *lines]


def batch_lines(replication: Any) -> List[str]:
  """A line that says that a step now takes another batch, or none."""
  made, one = replication.chosen, replication.rows.get("1")
  before = None if one is None else one.global_batch
  if made is None or before is None or made.global_batch == before:
    return []
  return [f"The batch grew from {before:,} to {made.global_batch:,} examples a step: it is part of "
          f"the graph's shapes, and each of {made.replicas} replicas has it whole."]


def _cells(
    step_time_us: float, current_us: Optional[float], fits: bool, peak_memory_bytes: np.ndarray,
    work: List[str]) -> List[str]:
  return [_ms(step_time_us), _times(current_us, step_time_us), *work,
          "yes" if fits else "no", *_memory_cells(peak_memory_bytes)]


def _memory_titles(cluster: Cluster) -> List[str]:
  if cluster.num_devices > _MOST_COLUMNS:
    return ["GB at most"]
  return [f"GB {device.name}" for device in cluster.devices]


def _memory_cells(held_bytes: np.ndarray) -> List[str]:
  """Of each device [D], or, of many, the most."""
  shown = held_bytes if len(held_bytes) <= _MOST_COLUMNS else [held_bytes.max()]
  return [f"{each / 2**30:.2f}" for each in shown]


def verdict(result: Any) -> str:
  """One or two sentences: the gain, or that there is nothing to gain.

  A form of replicas that was asked for can be slower than the graph is, which shows as a loss.
  """
  current = result.baselines["current"]
  bound = ("no placement is faster, as was proven" if result.proven
           else f"at most {above(result):.1%} above the best possible")
  stopped = f" The search ended after {result.seconds:.1f} s: {result.ended}." if (
      result.ended) else ""
  if not current.fits:
    return (f"The current placement does not fit in memory; the one found does and takes "
            f"{_ms(result.step_time_us)} a step ({bound}).{stopped}")
  gain = 1 - result.step_time_us / current.step_time_us if current.step_time_us else 0.0
  if abs(gain) < NOTHING_TO_GAIN:
    return (f"Nothing to gain was found: the graph already takes {_ms(current.step_time_us)} a "
            f"step, the best placement found {_ms(result.step_time_us)}; {bound}.{stopped}")
  return (f"A step takes {_ms(result.step_time_us)} instead of {_ms(current.step_time_us)} "
          f"({ratio(current.step_time_us, result.step_time_us):.2f}x) after "
          f"{result.evaluations:,} placements evaluated; {bound}.{stopped}")


def above(result: Any) -> float:
  """The share by which the step is above its lower bound; that is 0 only if the step is."""
  return max(0.0, result.step_time_us / max(result.lower_bound_us, 1e-9) - 1)


def ratio(over: Optional[float], under: Optional[float]) -> float:
  """A speed-up; NaN where one of the times is not known."""
  return over / under if over and under else float("nan")


def title(result: Any) -> str:
  """Returns the text above a timeline."""
  return f"placed: {_ms(result.step_time_us)}"


def _times(over: Optional[float], under: Optional[float]) -> str:
  return f"{over / under:.2f}x" if over and under else "-"


def _ms(us: Optional[float]) -> str:
  if us is None:
    return "-"
  return ms_text(us, 1 if us < 1e6 else 0)


def _align(rows: List[List[str]]) -> List[str]:
  widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
  words = {0, *(j for j, title in enumerate(rows[0]) if not title)}  # the others hold numbers
  return ["  ".join(cell.ljust(w) if j in words else cell.rjust(w)
                    for j, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows]
