"""measure.py, calibrate.py and place.py --timing=session, in sessions of this process."""

import json
import re

import pytest

import pages
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.placements import Placement


@pytest.fixture(name="files")
def files_fixture(placed_files):
  return placed_files("cpu:2")


def test_each_placement_is_a_line_beside_its_prediction(run_program, files):
  done = run_program(
      "measure", f"--graph={files / 'small.meta'}", "--cluster=cpu:2",
      f"--placement={files / 'one.json'},{files / 'two.json'}", "--max_runs=6",
      "--warmup_runs=1")
  assert done.code == 0, done.err
  lines = [json.loads(line) for line in done.out.splitlines()]
  assert [line["placement"] for line in lines] == [
      str(files / "one.json"), str(files / "two.json")]
  for line in lines:
    assert 0 < line["low_us"] <= line["measured_us"] <= line["high_us"]
    assert line["runs"] == 6 and line["predicted_us"] > 0 and "failure" not in line


@pytest.mark.parametrize("flag, says", [
    ("--workers=local:none", "expected local:N"),
    ("--workers=nowhere", "expected host:port"),
    ("--device_map=/CPU:0", "was not understood"),
    ("--device_map=/CPU:0=/CPU:1,/CPU:0=/CPU:0", "each device once"),
    ("--device_map=/CPU:0=/CPU:9", "/device:CPU:9"),
    ("--placement=missing.json", "missing.json"),
])
def test_bad_input_is_one_sentence(run_program, files, flag, says):
  done = run_program(
      "measure", f"--graph={files / 'small.meta'}", "--cluster=cpu:2",
      f"--placement={files / 'one.json'}", flag)
  assert done.code == 2 and says in done.err and len(done.err.strip().splitlines()) == 1


def test_calibration_writes_what_the_other_programs_read(run_program, files, monkeypatch):
  from placeto_tf.runtime import fitting, microbenchmarks

  monkeypatch.setattr(microbenchmarks, "_WORK", 3)
  monkeypatch.setattr(microbenchmarks, "_CHAIN", 50)
  monkeypatch.setattr(fitting, "_SEARCH_EVALUATIONS", 50)
  out = files / "calibrated"
  done = run_program(
      "calibrate", "--cluster=cpu:2", f"--graph={files / 'small.meta'}", f"--out={out}",
      "--runs=2", "--graph_runs=2")
  assert done.code == 0, done.err
  said = json.loads(done.out)
  assert set(said["step_time_us"]) == {"/CPU:0", "/CPU:1"}
  assert Cluster.load(said["cluster"]).ready_order == "executor"
  done = run_program(
      "measure", f"--graph={files / 'small.meta'}", f"--cluster={said['cluster']}",
      f"--cost_model={said['costs']}", f"--placement={files / 'two.json'}", "--max_runs=6")
  assert done.code == 0 and json.loads(done.out)["predicted_us"] > 0


def test_place_lets_real_sessions_decide(run_program, files):
  done = run_program(
      "place", f"--graph={files / 'small.meta'}", "--cluster=cpu:2", "--method=metis",
      "--max_evaluations=50", "--timing=session", "--max_measurements=4",
      f"--out={files / 'placed'}")
  assert done.code == 0 and re.search(r"^Measuring placements \.\.\. \d", done.err, re.M), done.err
  assert "measured 4 placements in real sessions" in done.out
  measured = json.loads((files / "placed" / "report.json").read_text())["measured"]
  assert set(measured) == pages.fields("Measured")
  assert measured["measurements"] == 4 and not measured["failures"]
  assert measured["step_time_us"] > 0 and {"single", "metis", "best"} <= set(measured["placers"])
  Placement.load(str(files / "placed" / "placement.json"))
