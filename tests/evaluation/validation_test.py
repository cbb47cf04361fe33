"""What place.py left in a directory is computed again, and every change of it is found."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import graph_files
from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation import validate
from placeto_tf.placements import placement_json

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(name="placed", scope="module")
def placed_fixture(tmp_path_factory):
  """The directory of results of one run."""
  root = tmp_path_factory.mktemp("placed")
  (root / "small.meta").write_bytes(graph_files.meta_graph_def().SerializeToString())
  subprocess.run(
      [sys.executable, str(ROOT / "scripts" / "place.py"), f"--graph={root / 'small.meta'}",
       "--cluster=k80:2", "--batch_size=8", "--max_evaluations=30", f"--out={root / 'out'}"],
      check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
  return root / "out"


@pytest.fixture(name="out")
def out_fixture(placed, tmp_path):
  return pathlib.Path(shutil.copytree(placed, tmp_path / "out"))


def test_what_was_written_comes_out_again(out):
  assert validate(str(out)) == []


@pytest.mark.parametrize("name", [
    "placement.json", "report.json", "timeline.json", "timeline.png", "graph.meta"])
def test_a_file_that_was_changed_or_is_missing_is_named(out, name):
  with open(out / name, "ab") as file:
    file.write(b" ")
  assert any(each.startswith(name) for each in validate(str(out)))
  if name not in ("report.json", "graph.meta"):
    (out / name).unlink()
    assert any(each.startswith(name) for each in validate(str(out)))


def _forge(out, name, change):
  """Changes a file as somebody does who makes new digests."""
  content = json.loads((out / name).read_text())
  change(content)
  if name == "placement.json":
    content["digest"] = placement_json.digest_of(content)
  (out / name).write_text(json.dumps(content))
  listed = json.loads((out / ".results.json").read_text())
  from placeto_tf.graphs import result_directory

  listed["files"][name] = result_directory._digest(str(out / name))
  (out / ".results.json").write_text(json.dumps(listed))


@pytest.mark.parametrize("field, value, said", [
    ("method", "single", "method"), ("seed", 7, "seed"), ("evaluations", 7, "evaluations"),
    ("step_time_us", 1.5, "step_time_us"), ("lower_bound_us", 1e12, "lower_bound_us"),
    ("peak_memory_bytes", {"/GPU:0": 1.0, "/GPU:1": 1.0, "/CPU:0": 1.0}, "peak_memory_bytes"),
    ("cluster", {"devices": []}, "cluster"),
    ("graph", {"fingerprint": "0" * 32, "fetches": ["train"], "shapes": {}}, "fingerprint")])
@pytest.mark.parametrize("name", ["placement.json", "report.json"])
def test_forged_fields_are_found_though_their_digests_are_right(out, name, field, value, said):
  def change(content):
    assert content[field] != value
    content[field] = value

  _forge(out, name, change)
  differences = validate(str(out))
  assert differences and any(said in each for each in differences), differences


def test_a_forged_timeline_is_found(out):
  _forge(out, "timeline.json", lambda content: content["traceEvents"].pop())
  assert validate(str(out)) == ["timeline.json: not that of the placement"]


def test_a_directory_without_results_is_an_error(tmp_path):
  with pytest.raises(PlacetoError, match="has no .results.json"):
    validate(str(tmp_path))
