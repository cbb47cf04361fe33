"""Computes the results of a study of predictions: agreement with measurements, as a table.

The results are computed from the files of `prediction_study.py`, and written beside these:
`summary.json`, `table.md`.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Mapping

import numpy as np
import pandas as pd
from prediction_study import StudyConfig, graph_directory, measured_rows, predicted_us

from placeto_tf.evaluation.tables import markdown
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
    found.update({f"{kind}_us": by_kind.get(kind) for kind in ("single", "expert", "best")})
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
  return markdown(pd.DataFrame([{
      "graph": f"`{spec}`", "placements": row["placements"],
      "median error": f"{row['median_error']:.1%}", "mean error": f"{row['mean_error']:.1%}",
      "rank corr.": f"{row['rank_correlation']:.2f}",
      "best quarter": f"{row['rank_correlation_best_quarter']:.2f}",
      "noise (error, rank)": f"{row.get('noise_error', np.nan):.1%}, "
                             f"{row.get('noise_rank_correlation', np.nan):.2f}",
      "one worker over best": "-" if None in (row["single_us"], row["best_us"]) else (
          f"{row['single_us'] / row['best_us']:.2f}x")}
      for spec, row in summary.items()]))
