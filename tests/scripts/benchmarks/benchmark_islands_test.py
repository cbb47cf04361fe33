"""The benchmark of islands: it runs, prints its table, and makes no run twice."""

import csv

GRAPH = "zoo:rnnlm:layers=1:steps=2:hidden=16:batch=2:vocab=20"


def test_it_measures_islands_and_goes_on(run_program, tmp_path, clock_of_looks):
  flags = (f"--graphs={GRAPH}", "--more_graphs=", "--cluster=k80:2", "--seconds=1",
           f"--out={tmp_path}")
  done = run_program("benchmark_islands", *flags, "--methods=annealing")
  assert done.code == 0, done.err
  lines = [line for line in done.out.split("\n") if line.startswith(f"| {GRAPH}")]
  assert [line.split("|")[3].strip() for line in lines] == ["1", "2"]
  assert lines[0].split("|")[5].strip() == "1.00" and lines[0].split("|")[11].strip() == "0.00 %"
  before = (tmp_path / "runs.csv").read_text(encoding="utf-8")
  again = run_program("benchmark_islands", *flags, "--methods=annealing,local_search")
  assert again.code == 0, again.err
  after = (tmp_path / "runs.csv").read_text(encoding="utf-8")
  assert after.startswith(before)
  runs = list(csv.DictReader(after.splitlines()))
  assert [(run["method"], run["islands"]) for run in runs] == [
      ("annealing", "1"), ("annealing", "2"), ("local_search", "1"), ("local_search", "2")]
  assert all(int(run["evaluations"]) > 0 and 0 < float(run["compiled_s"]) < float(run["cpu_s"])
             for run in runs)
