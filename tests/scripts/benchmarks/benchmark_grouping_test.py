"""The table of groupings: every one gets the same search, and a second run does nothing again."""

import csv

GRAPH = "rnnlm:layers=1:steps=2:hidden=16:batch=2:vocab=20"


def test_it_measures_groupings_and_goes_on(run_program, tmp_path):
  flags = (f"--graphs={GRAPH}", "--cluster=k80:2", "--max_groups=12", "--max_evaluations=120",
           "--best_seconds=0.3", f"--out={tmp_path}")
  done = run_program("benchmark_grouping", *flags, "--groupings=heavy_edge,metis", "--seeds=0")
  assert done.code == 0, done.err
  more = run_program(
      "benchmark_grouping", *flags, "--groupings=heavy_edge,metis,none", "--seeds=0,1")
  assert more.err.count("grouping metis") == 1  # the second seed
  with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 7 and {row["evaluations"] for row in rows if row["seed"]} == {"120"}
  assert all(int(row["groups"]) <= 12 for row in rows if row["grouping"] in ("heavy_edge", "metis"))
  best = float(next(row for row in rows if not row["seed"])["step_time_us"])
  # The best known began at what the first run had found; `none` came after it.
  assert best <= min(float(row["step_time_us"]) for row in rows
                     if row["seed"] == "0" and row["grouping"] != "none")
  lines = more.out.strip().split("\n")
  assert len(lines) == 4 and lines[2].startswith(f"| `{GRAPH}` | ")
  assert all(cell.strip().startswith("+") for cell in lines[2].split("|")[3:6])
  assert lines[3].startswith("| geometric mean |")
