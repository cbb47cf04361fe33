"""The examples and the README's Python run as they stand, and show a gain."""

import json
import pathlib
import re
import runpy

import pytest

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


def readme_blocks():
  return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readmes_first_lines_of_python_run(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  first, _ = readme_blocks()
  few = first.replace("zoo:inception_v3", "zoo:rnnlm:steps=4:hidden=64").replace("20000", "40")
  names = {}
  exec(compile(few, "README.md", "exec"), names)
  assert "A step takes" in capsys.readouterr().out
  placement = json.loads((tmp_path / "placement.json").read_text())
  assert len(placement["placement"]) > names["graph"].num_ops - 1


def test_the_readmes_example_runs_as_it_stands(capsys):
  _, second = readme_blocks()
  names = {}
  exec(compile(second, "README.md", "exec"), names)
  assert re.search(r"ms on one device, [\d.]+ ms placed", capsys.readouterr().out)
  assert names["result"].step_time_us < names["single_us"]
  assert {"/device:GPU:0", "/device:GPU:1"} <= {node.device for node in names["placed"].node}


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
  names = runpy.run_path(str(EXAMPLES / "train_with_stable_baselines3.py"))
  names["main"](4800)
  before_ms, after_ms = map(float, re.search(
      r"([\d.]+) ms before training, ([\d.]+) ms after", capsys.readouterr().out).groups())
  assert after_ms < before_ms


def test_dense_blocks_are_a_graph_with_a_free_batch(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("sys.argv", ["dense_blocks.py"])
  run_script("dense_blocks.py")
  source = ReplicaSource(str(tmp_path / "dense_blocks.meta"), {"batch_size": 16})
  assert source.free_batch and source.replicas(2).global_batch == 16
