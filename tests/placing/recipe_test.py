"""Follows docs/adding_a_method.md: one new module is found wherever methods are listed or run."""

import importlib
import pathlib
import re
import sys

import pytest

import graph_files
from placeto_tf import place, search
from placeto_tf.evaluation import EvaluationConfig, evaluate
from placeto_tf.placing import publishing, registry, tables
from placeto_tf.search import starts

RECIPE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "adding_a_method.md"


@pytest.fixture(name="add")
def add_fixture(tmp_path, monkeypatch):
  """Puts a module among those of `placeto_tf.search`."""
  folder = tmp_path / "modules"
  folder.mkdir()
  monkeypatch.setattr(search, "__path__", [*search.__path__, str(folder)])
  added = []

  def add(name, text):
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    added.append(name)

  yield add
  for name in added:
    sys.modules.pop(f"placeto_tf.search.{name}", None)
    search.__dict__.pop(name, None)


def example():
  """The module of the recipe's first step."""
  block = re.search(r"   ```python\n(.*?)```", RECIPE.read_text(), re.DOTALL).group(1)
  return re.sub(r"^   ", "", block, flags=re.MULTILINE)


@pytest.fixture(name="graph", scope="module")
def graph_fixture(tmp_path_factory):
  return graph_files.write(
      graph_files.meta_graph_def(), tmp_path_factory.mktemp("graph") / "graph.meta")


def test_the_example_is_placed_with_evaluated_and_shown(add, graph, tmp_path):
  assert "last_device" not in registry.names()
  add("last_device", example())
  assert "last_device" in registry.names()

  result = place(graph, "cpu:3", "last_device", max_evaluations=40, max_groups=8)
  assert result.baselines["last_device"].evaluations == 1
  assert set(result.baselines["last_device"].placement.tolist()) == {2}
  assert re.search(r"^last_device ", tables.table(result, verbose=True), re.MULTILINE)
  assert "last_device" in publishing.report(result)["baselines"]

  rows = evaluate(EvaluationConfig(
      graphs=(graph,), clusters=("cpu:3",), methods=("annealing", "last_device"),
      start=("last_device",), max_evaluations=30, max_groups=8), str(tmp_path / "out"))
  assert list(rows["method"]) == ["annealing", "last_device"]
  assert rows["start_us"][0] == rows["step_time_us"][1] and rows["evaluations"][1] == 1


def test_a_construction_and_a_policy_with_a_part_in_auto_run_there(add, graph):
  add("last_device", example().replace(
      "Kind.CONSTRUCTION, unseeded(last_device)",
      "Kind.CONSTRUCTION, unseeded(last_device), start_rank=0.5"))
  add("last_policy", example().replace('"last_device"', '"last_policy"').replace(
      "Kind.CONSTRUCTION, unseeded(last_device)",
      "Kind.POLICY, unseeded(last_device), rank=0.5, in_auto=True"))
  rows = place(graph, "k80:3", "auto_unlearned", max_evaluations=150, max_groups=30).baselines
  assert "last_device" in rows and "last_policy" not in rows
  assert registry.search_of_auto().name == "last_policy"
  assert starts.start_methods()[0].name == "last_device"
