"""evaluate.py: results and tables."""

import csv
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_every_method_has_its_rows_within_each_budget(run_program, tmp_path):
  out = tmp_path / "results"
  done = run_program(
      "evaluate", "--graphs=family:tiny[0:2]", "--clusters=k80:2", "--methods=single,local_search",
      "--seeds=0,1", "--max_evaluations=30", "--max_groups=8", "--budgets=10,30", f"--out={out}")
  assert done.code == 0, done.err
  with open(out / "results.csv", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  # With a budget of 10 every method has run once more.
  assert "| method | 10 evaluations | 30 evaluations |" in done.out
  assert all(int(row["evaluations"]) <= int(row["budget"]) for row in rows)
  assert {(row["method"], row["budget"]) for row in rows} == {
      ("single", "30"), ("local_search", "10"), ("local_search", "30")}
  assert "[12/12] " in done.err and "seed 1 budget 10: " in done.err


def test_the_comparison_of_held_out_graphs_is_a_file_of_flags(run_program, tmp_path):
  flags = ROOT / "docs" / "results" / "data" / "held_out.flags"
  numbers = re.findall(r"family:\w+\[(\d+)\]", flags.read_text())
  assert len(numbers) == 6 and all(24 <= int(number) < 32 for number in numbers)
  done = run_program(  # later flags win
      "evaluate", f"--flagfile={flags}", "--graphs=family:tiny[0]", "--max_evaluations=10",
      "--budgets=5,10", "--seeds=0", "--methods=single,local_search", f"--out={tmp_path / 'out'}")
  assert done.code == 0 and "| local_search | " in done.out, done.err
  assert "3 rows" in done.out and "| method | 5 evaluations | 10 evaluations |" in done.out
