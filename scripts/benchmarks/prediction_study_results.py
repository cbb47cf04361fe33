"""Computes the results of a study of predictions: agreement with measurements, as a table.

The results are computed from the files of `prediction_study.py`, and written beside these:
`summary.json`, `table.md`.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Mapping, Optional

import numpy as np
from prediction_study import StudyConfig, graph_directory, measured_rows, predicted_us

from placeto_tf.files import outputs


def agreement(predicted: np.ndarray, measured: np.ndarray) -> Dict[str, float]:
  """Errors relative to measurements, and rank correlations, of all and of the best quarter."""
  error = np.abs(predicted - measured) / measured
  best = np.argsort(measured, kind="stable")[:max(3, len(measured) // 4)]
  return {
      "median_error": float(np.median(error)), "mean_error": float(error.mean()),
      "rank_correlation": _spearman(predicted, measured),
      "rank_correlation_best_quarter": _spearman(predicted[best], measured[best])}


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
  from scipy import stats

  if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
    return float("nan")
  return float(stats.spearmanr(a, b)[0])


def summarize(config: StudyConfig, out: str) -> Dict[str, Any]:
  """Computes the results of all graphs from the measurements, and writes them."""
  summary: Dict[str, Any] = {}
  for spec in config.graphs:
    directory = graph_directory(out, spec)
    everything = measured_rows(os.path.join(directory, "measured.json"))
    # Calibration used the graph on one device.
    rows = [row for row in everything.values() if _kind(row["placement"]) != "single"]
    expected_us = predicted_us(directory) if rows else {}
    rows = [row for row in rows if row["placement"] in expected_us]
    if len(rows) < 3:
      continue
    predicted = np.array([expected_us[row["placement"]] for row in rows])
    measured = np.array([row["measured_us"] for row in rows])
    found: Dict[str, Any] = {"placements": len(rows), **agreement(predicted, measured)}
    again = {label: row["measured_us"] for label, row in measured_rows(
        os.path.join(directory, "repeats.json")).items()}
    twice = [row for row in rows if row["placement"] in again]
    if len(twice) >= 3:
      noise = agreement(np.array([again[row["placement"]] for row in twice]),
                        np.array([row["measured_us"] for row in twice]))
      found.update(noise_error=noise["median_error"],
                   noise_rank_correlation=noise["rank_correlation"])
    by_kind = {_kind(row["placement"]): row["measured_us"] for row in everything.values()}
    for kind in ("single", "expert", "best"):
      found[f"{kind}_us"] = by_kind.get(kind)
    found["spread"] = [float(measured.min()), float(measured.max())]
    summary[spec] = found
  outputs.write_json(os.path.join(out, "summary.json"), summary)
  outputs.write(os.path.join(out, "table.md"), (table(summary) + "\n").encode("utf-8"))
  return summary


def _kind(label: str) -> str:
  """The kind of a placement, by the name of its file."""
  return re.sub(r"^\d+_|\.json$", "", label)


def table(summary: Mapping[str, Mapping[str, Any]]) -> str:
  """The results in Markdown."""
  lines = ["| graph | placements | median error | mean error | rank corr. | "
           "best quarter | noise (error, rank) | one worker over best |",
           "|---|---|---|---|---|---|---|---|"]
  for spec, row in summary.items():
    gain = _over(row.get("single_us"), row.get("best_us"))
    lines.append(
        f"| `{spec}` | {row['placements']} | "
        f"{row['median_error']:.1%} | {row['mean_error']:.1%} | "
        f"{row['rank_correlation']:.2f} | {row['rank_correlation_best_quarter']:.2f} | "
        f"{row.get('noise_error', float('nan')):.1%}, "
        f"{row.get('noise_rank_correlation', float('nan')):.2f} | {gain} |")
  return "\n".join(lines)


def _over(a: Optional[float], b: Optional[float]) -> str:
  return f"{a / b:.2f}x" if a and b else "-"
