"""The main program on a small graph, and what it says to bad input."""

import json
import pathlib

import pytest
from tensorflow.core.protobuf import meta_graph_pb2

import graph_files
import pages

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(name="meta")
def meta_fixture(tmp_path):
  return graph_files.write(graph_files.meta_graph_def(), tmp_path / "small.meta")


@pytest.fixture(name="place_it")
def place_it_fixture(run_program, tmp_path):
  """Runs place.py with defaults that are good; what a test passes comes later and wins."""

  def run(*args):
    return run_program(
        "place", "--cluster=k80:2", f"--out={tmp_path / 'placed'}", "--max_evaluations=40",
        "--max_groups=8", *args)

  return run


def test_a_training_graph_comes_out_placed_with_all_its_reports(place_it, meta, tmp_path):
  done = place_it(f"--graph={meta}")
  assert done.code == 0, done.err
  out = tmp_path / "placed"
  assert {path.name for path in out.iterdir()} == {
      "README.md", "placement.json", "graph.meta", "report.json", "timeline.json", "timeline.png",
      "tensorboard", ".results.json"}
  assert done.out.splitlines()[-2:] == [
      f"Feeds, checkpoints and how to measure it: {out / 'README.md'}",
      f"To look at it: tensorboard --logdir={out / 'tensorboard'}"]
  readme = (out / "README.md").read_text()
  assert "tf.train.import_meta_graph(" in readme and "session.run(['train']" in readme
  placed = meta_graph_pb2.MetaGraphDef.FromString((out / "graph.meta").read_bytes())
  assert all(node.device for node in placed.graph_def.node)
  original = graph_files.meta_graph_def()
  for node in placed.graph_def.node:
    node.device = ""
  assert placed.graph_def == original.graph_def  # nothing but devices was changed
  rows = [line.split("  ")[0] for line in done.out.splitlines()]
  rows = rows[rows.index("placer"):]
  assert rows[:rows.index("")] == [
      "placer", rows[1], "current", "single device", "expert (splits by hand)", "METIS", "best",
      "lower bound"]
  report = json.loads((out / "report.json").read_text())
  assert report["evaluations"] <= 40 and report["accuracy"] in done.out
  assert report["step_time_us"] <= min(
      row["step_time_us"] for row in report["baselines"].values())
  assert report["step_time_us"] >= report["lower_bound_us"]
  parts = report["explanation"]
  assert set(report) == pages.fields("report.json") and report["version"] == 1
  assert set(parts) == pages.fields("Explanation")
  assert set(report["baselines"]["single"]) == pages.fields("A row of baselines")
  assert {*json.loads((out / "placement.json").read_text()), "replicas"} == pages.fields(
      "placement.json")
  assert sum(parts["compute_us"].values()) + sum(parts["transfer_us"].values()) + parts[
      "launches_us"] + parts["waiting_us"] == pytest.approx(report["step_time_us"])


def test_why_prints_without_writing(run_program, meta):
  done = run_program(
      "place", "--cluster=k80:2", "--max_evaluations=40", f"--graph={meta}", "--why=train")
  assert done.code == 0, done.err
  assert "\ntrain is on " in done.out and "Written to" not in done.out
  done = run_program("place", "--cluster=k80:2", f"--graph={meta}", "--why=trian")
  assert_one_sentence(done, "'trian' matches none")
  assert "Placing (" not in done.err


def test_results_that_no_earlier_run_wrote_and_inputs_are_never_written_over(
    place_it, tmp_path):
  out = tmp_path / "placed"
  out.mkdir()
  graph_files.write(graph_files.meta_graph_def(), out / "graph.meta")
  before = (out / "graph.meta").read_bytes()
  done = place_it(f"--graph={out / 'graph.meta'}", "--method=single")
  assert_one_sentence(done, "is an input of this run")
  (out / "graph.meta").rename(tmp_path / "small.meta")
  (out / "report.json").write_text("the user's own")
  done = place_it(f"--graph={tmp_path / 'small.meta'}", "--method=single")
  assert_one_sentence(done, "report.json' is in the way")
  assert [path.name for path in out.iterdir()] == ["report.json"]
  assert (out / "report.json").read_text() == "the user's own"
  assert (tmp_path / "small.meta").read_bytes() == before
  assert_one_sentence(
      place_it(f"--graph={tmp_path / 'small.meta'}", "--out="), "has no name that can be one")


def assert_one_sentence(done, culprit):
  assert done.code == 2, (done.out, done.err)
  assert culprit in done.err.strip().splitlines()[-1]
  assert "Traceback" not in done.err + done.out


@pytest.mark.parametrize("arg, culprit", [
    ("--cluster=k81:4", "k81"), ("--cluster=", "cluster"),
    ("--fetches=no_such_op", "no_such_op"), ("--method=magic", "magic"),
    ("--grouping=magic", "magic"), ("--graph=missing.meta", "missing.meta"),
    ("--cost_model=missing.pb", "missing.pb"), ("--max_evaluations=0", "max_evaluations"),
    ("--max_groups=0", "max_groups"), ("--pin=[:/GPU:0", "'[' is"), ("--pin=.*:/GPU:7", "/GPU:7"),
    ("--feed_shapes=features", "features"), ("--no_such_flag=1", "no_such_flag"),
    ("stray", "stray")])
def test_a_bad_argument_ends_in_one_sentence(arg, culprit, place_it, meta):
  assert_one_sentence(place_it(f"--graph={meta}", arg), culprit)


def test_what_is_taken_as_the_step_is_said_first(place_it, meta):
  done = place_it(f"--graph={meta}", "--method=single")
  lines = [line for line in done.err.splitlines() if "A step runs" in line]
  assert lines and lines[0].startswith(
      "A step runs train, fed features:0 [8, 64], labels:0 [8, 64]: ")
  assert done.err.index("A step runs") < done.err.index("Estimating costs")


@pytest.mark.parametrize("missing", ["graph", "out"])
def test_a_missing_flag_is_asked_for(missing, run_program, meta, tmp_path):
  given = {"graph": meta, "out": tmp_path / "placed", "cluster": "k80:2"}
  done = run_program("place", *(
      f"--{name}={value}" for name, value in given.items() if name != missing))
  assert done.code == 2 and f"--{missing} is missing; expected --{missing}=VALUE" in done.err
