"""The examples and the README's Python run as they stand, and show a gain."""

import json
import pathlib
import re
import runpy
import textwrap

import pytest

import graph_files
import placeto_tf as placeto
import subprograms
from placeto_tf.replication import ReplicaSource

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module", name="live")
def live_fixture(tmp_path_factory):
  """Name -> (folder, what it prints) of examples that set devices, in a process of their own."""
  folders = {name: tmp_path_factory.mktemp("live") for name in (
      "train_a_keras_model.py", "train_a_loop.py")}
  code = "import os, runpy\n" + "".join(
      f"os.chdir({str(folder)!r})\n"
      f"runpy.run_path({str(EXAMPLES / name)!r}, run_name='__main__')\nprint(end='\\f')\n"
      for name, folder in folders.items())
  shown = subprograms.python("-c", code, PYTHONPATH=str(ROOT)).stdout.split("\f")
  return dict(zip(folders, zip(folders.values(), shown)))


def run_script(name):
  runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_a_graph_built_in_python_is_placed_and_comes_back_with_devices(capsys):
  run_script("place_a_training_graph.py")
  shown = capsys.readouterr().out
  assert float(re.search(r"\(([\d.]+) times as fast\)", shown).group(1)) > 1.2
  placed = re.findall(r"^(\d+) ops on (/device:[CG]PU:\d)$", shown, re.MULTILINE)
  assert {device for _, device in placed} >= {"/device:GPU:0", "/device:GPU:1"}


def test_a_second_device_pays_and_faster_links_pay_more(capsys):
  run_script("compare_clusters.py")
  rows = re.findall(r"^(.+?) +([\d.]+) ms +([\d.]+) ms +([\d.]+) ms$",
                    capsys.readouterr().out, re.MULTILINE)
  placed_ms = {name: float(placed) for name, _, _, placed in rows}
  assert list(placed_ms) == ["one K80", "two K80s", "two, fast links"]
  assert placed_ms["two, fast links"] < placed_ms["two K80s"] < placed_ms["one K80"]


@pytest.mark.parametrize("name, said, events", [
    ("train_a_keras_model.py", "tensorboard --logdir=live", True),
    ("train_a_loop.py", "losses [", False)])
def test_a_live_model_trains_and_is_planned_for_other_devices(live, name, said, events):
  folder, shown = live[name]
  training, plan = shown.strip().split("\n\n")
  assert "A step" in training and said in training
  assert re.match(r"TrainingPlan\([\d.]+ ms a step", plan)
  assert bool(list(folder.rglob("events.out.tfevents.*"))) == events
  assert "/GPU:1" in json.loads((folder / "plan.json").read_text())["devices"]


def test_the_notebooks_cells_run_in_order(capsys):
  path = EXAMPLES / "look_at_a_placement.ipynb"
  notebook = json.loads(path.read_text())
  assert path.stat().st_size < 20_000  # outputs are kept small
  names = {}
  for cell in notebook["cells"]:
    if cell["cell_type"] != "code":
      continue
    assert cell["outputs"], "a cell shows nothing"
    exec(compile("".join(cell["source"]), str(path), "exec"), names)  # as Jupyter runs it
    assert capsys.readouterr().out
  single_us, random_us = names["step_time_us"]
  assert names["result"].lower_bound_us <= names["result"].step_time_us < single_us < random_us
  assert names["simulated"].step_time_us == pytest.approx(names["result"].step_time_us)


# Page -> texts of its first snippet, and what the test has in their place to take less time.
SMALLER = {
    "README": {'replicas="auto", max_evaluations=1000': "max_evaluations=40"},
    "keras_models": {"max_seconds=20": "max_evaluations=20"},
    "other_rl_libraries": {"zoo:rnnlm": "zoo:rnnlm:steps=2:hidden=16:vocab=50"},
    "recommenders": {"00_000": "00", 'replicas="auto", max_seconds=60': "max_evaluations=40"},
    "training_loops": {'replicas="auto", max_seconds=20': "max_evaluations=20"}}
# Run below, in agents_test.py, and as a program in scripts/train_test.py.
RUN_ELSEWHERE = ("placeto_in_200_lines", "policy_step_by_step", "training_a_policy")
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").glob("*.md"))
                               if path.name not in ("README.md", "results.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_opens_with_python_that_runs(page, tmp_path, monkeypatch):
  text = page.read_text()
  snippet = re.search(r"^( *)```python\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
  assert text[:snippet.start()].count("\n") < 20
  code = textwrap.dedent(snippet[2])
  for long, short in SMALLER.get(page.stem, {}).items():
    assert long in code
    code = code.replace(long, short)
  monkeypatch.chdir(tmp_path)
  if page.stem not in RUN_ELSEWHERE:
    exec(compile(code, str(page), "exec"), {})


def test_the_readmes_graph_is_placed(capsys):
  code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
  names = {"placeto": placeto, "tf_graph": graph_files.imported(graph_files.graph_def())}
  code = code.replace("max_seconds=60", "max_evaluations=20").replace("embedding/.*", ".*")
  exec(compile(code, "README.md", "exec"), names)
  assert "a step" in capsys.readouterr().out
  assert all(node.device for node in names["placed"].node)


def test_the_published_process_in_one_page_learns():
  page = (ROOT / "docs" / "placeto_in_200_lines.md").read_text()
  blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
  process = "".join(blocks[:5])
  assert len("".join(blocks).splitlines()) <= 200
  names = {}
  few = process.replace("EPISODES, SEED = 300, 0", "EPISODES, SEED = 24, 0")
  assert few != process
  exec(compile(few, "placeto_in_200_lines.md", "exec"), names)
  ends = names["ends"]  # each episode's last step time over that of the start
  assert sum(ends[-6:]) < 0.8 * sum(ends[:6])
  assert names["best"][0] <= names["start_us"]


def test_an_agent_of_another_library_learns(capsys):
  pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is nobody's dependency here")
  runpy.run_path(str(EXAMPLES / "train_with_stable_baselines3.py"))["main"](4800)
  before_ms, after_ms = map(float, re.search(
      r"([\d.]+) ms before training, ([\d.]+) ms after", capsys.readouterr().out).groups())
  assert after_ms < before_ms


def test_dense_blocks_are_a_graph_with_a_free_batch(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("sys.argv", ["dense_blocks.py"])
  run_script("dense_blocks.py")
  source = ReplicaSource(str(tmp_path / "dense_blocks.meta"), {"batch_size": 16})
  assert source.free_batch and source.replicas(2).global_batch == 16
