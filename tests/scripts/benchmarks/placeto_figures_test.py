"""Placeto's figures: the program trains, draws, prints its tables, and trains no run twice."""


def test_curves_are_trained_once_and_drawn(run_program, tmp_path, cheaply):
  flags = ("--parts=curves", "--graph=zoo:rnnlm:layers=1:steps=2:hidden=16:batch=2:vocab=20",
           "--cluster=k80:2", "--variants=one sum over groups", "--iterations=1", "--max_groups=3",
           "--simulations=5", "--seeds=0,1", f"--out={tmp_path}")
  done = run_program("placeto_figures", *flags)
  assert done.code == 0, done.err
  rows = {line.split("|")[1].strip(): line for line in done.out.splitlines() if "|" in line}
  assert " ± " in rows["one sum over groups"]
  assert {"local_search, 5 simulations", "annealing, 5 simulations",
          "uniform moves, 5 simulations"} <= set(rows)
  weights = list(tmp_path.glob("one_sum_over_groups_s*/**/*.npz"))
  assert weights
  before = {path: path.stat().st_mtime_ns for path in weights}
  assert run_program("placeto_figures", *flags).out == done.out
  assert {path: path.stat().st_mtime_ns for path in weights} == before
  assert (tmp_path / "curves.png").exists()
