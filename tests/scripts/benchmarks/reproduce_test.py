"""Tables of pages: each has its place, and figures are means over graphs, then over seeds."""

import pathlib
import re

import pandas as pd
import pytest

from placeto_tf.errors import PlacetoError

_PAGES = pathlib.Path(__file__).resolve().parents[3] / "docs" / "results"


@pytest.fixture(name="reproduce")
def reproduce_fixture(load_program):
  return load_program("reproduce")


def test_every_table_has_one_place_in_its_page_and_every_place_a_table(reproduce):
  for name in reproduce.PAGES:
    page = (_PAGES / f"{name}.md").read_text()
    marked = re.findall(r"<!-- table: ([\w ]+) -->", page)
    texts = [title for _, each in reproduce.PAGES[name].values() for title in each]
    assert sorted(marked) == sorted([*texts, "made by"]), name
    assert (_PAGES / "data" / f"{name}.csv").exists() or "Not made anew" in page, name


def test_a_table_takes_its_place_again_and_again(reproduce):
  page = "before <!-- table: a --> <!-- end --> between <!-- table: b --><!-- end -->"
  once = reproduce.with_table(page, "a", "| old |")
  assert reproduce.with_table(once, "a", "| new |") == once.replace("old", "new")
  assert once.endswith("<!-- end --> between <!-- table: b --><!-- end -->")
  with pytest.raises(PlacetoError, match="no place for the table 'c'"):
    reproduce.with_table(page, "c", "")


def test_ratios_are_means_over_graphs_then_over_seeds(reproduce):
  ratios = {"placeto": (0.5, 0.8, 0.4, 0.4), "annealing": (0.6, 0.6, 0.8, 0.8)}
  rows = pd.DataFrame([
      {"graph": graph, "method": method, "budget": 30, "seed": seed, "ratio": ratio}
      for method, values in ratios.items()
      for (seed, graph), ratio in zip([(0, "a"), (0, "b"), (1, "a"), (1, "b")], values)])
  lines = reproduce.by_budget(rows, "", lambda found: found["graph"].str.len()).splitlines()
  # Means of seeds: sqrt(0.5 * 0.8) = 0.632 and 0.4; 0.6 and 0.8.
  assert lines[2:] == [
      "| `placeto` | **0.516 ± 0.164** |", "| annealing | 0.700 ± 0.141 |",
      "| `placeto` below the best rival by | 26.3 % |"]


def test_rows_so_far_are_not_made_again(reproduce, tmp_path):
  made = []

  def run(x):
    made.append(x)
    return {"square": x * x}

  for jobs in ([{"x": 0}, {"x": 1}], [{"x": 0}, {"x": 1}, {"x": 2}]):
    rows = reproduce.each_of(jobs.copy, run)(str(tmp_path))
  assert made == [0, 1, 2] and list(rows["square"]) == [0, 1, 4]
