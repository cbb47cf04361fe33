"""The figures of a study, and that they come from its files alone."""

import json

import numpy as np
import prediction_study as study
import prediction_study_results as study_results
import pytest


def test_agreement_of_equal_and_of_scaled_predictions():
  measured = np.arange(1.0, 13.0)
  exact = study_results.agreement(measured, measured)
  assert exact["median_error"] == exact["mean_error"] == 0
  assert exact["rank_correlation"] == exact["rank_correlation_best_quarter"] == 1
  scaled = study_results.agreement(1.1 * measured, measured)
  assert scaled["mean_error"] == pytest.approx(0.1) and scaled["rank_correlation"] == 1
  # Only the best quarter (1, 2 and 3) is in the wrong order.
  swapped = measured.copy()
  swapped[[0, 2]] = swapped[[2, 0]]
  found = study_results.agreement(swapped, measured)
  assert found["rank_correlation_best_quarter"] == -1 and found["rank_correlation"] > 0.9


def test_results_come_from_the_measurements_so_far(tmp_path):
  config = study.StudyConfig(("zoo:a:b=1",))
  directory = tmp_path / "zoo_a_b=1"
  directory.mkdir()
  rows = [
      {"placement": f"{i:02d}_{kind}.json",
       "measured_us": 110.0 * i + 100}
      for i, kind in enumerate(["best", "single", "near", "op", "op"])]
  (directory / "predicted.json").write_text(json.dumps(
      {row["placement"]: 100.0 * i + 100 for i, row in enumerate(rows)}))
  rows.insert(0, {**rows[3], "measured_us": 9.0})  # measured anew later
  rows.append({"placement": "07_op.json", "measured_us": None, "failure": "a sentence"})
  (directory / "measured.json").write_text(json.dumps(rows))
  summary = study_results.summarize(config, str(tmp_path))["zoo:a:b=1"]
  assert summary["placements"] == 4
  assert summary["rank_correlation"] == 1
  assert (summary["single_us"], summary["best_us"]) == (210.0, 100.0)
  assert "2.10x" in (tmp_path / "table.md").read_text()
