"""The program that trains, and what it says to bad input."""

import json

import pytest


def _trained(run_program, shown, *flags):
  """Trains two iterations and again, where there is nothing left to do."""
  done = run_program("train", *flags, "--iterations=2")
  assert done.code == 0, done.err
  assert "[2/2]" in done.err and shown in done.err and "goes on" not in done.err
  assert "Done: 2 iterations" in done.out
  assert run_program("train", *flags, "--iterations=2").out == done.out


def test_it_trains_shows_progress_and_says_that_it_is_done(run_program, tmp_path, cheaply):
  fields = ("steps=2", "batch=32", "schedule.rounds=16", "arms=32", "capacity=64", "width=8")
  _trained(run_program, "held_out_ratio", "--graphs=family:tiny[0:2]", "--clusters=k80:2,random[1]",
           "--held_out=family:tiny[3]", f"--root_dir={tmp_path / 'run'}",
           "--set", "max_groups=8,12", "--set", "watch_cluster=k80:2",
           *(f"--set={field}" for field in fields))
  assert json.loads((tmp_path / "run" / "done.json").read_text())["iterations"] == 2


@pytest.mark.parametrize("flags, message", [
    (("--set=max_groups=many",), "max_groups is 'many', expected a whole number"),
    (("--clusters=random",), "expected random[3]"),
    (("--set=width=0",), "width is 0"),
    (("--set=widht=9",), "did you mean width"),
    (("--set=iterations=5",), "iterations has a flag of its own"),
    (("--preset=tied",), "placeto has no preset 'tied'; expected paper"),
    (("--preset=paper", "--set=embedding=simple"), "expected one of placeto, simple_partitioner"),
    (("--preset=paper", "--clusters=k80:2,k80:3", "--set=max_groups=6"), "clusters of one size"),
    (("--actors=2",), "actors is 2 without ray"),
    (("--policy=rnn",), "policy 'rnn' is not known; expected one of gdp, placeto, or --import"),
])
def test_bad_input_ends_in_one_sentence(run_program, tmp_path, flags, message):
  done = run_program(
      "train", "--graphs=family:tiny[0]", f"--root_dir={tmp_path / 'run'}", *flags)
  assert done.code == 2 and message in done.err and "Traceback" not in done.err


@pytest.mark.parametrize("method, shown, flags, fields", [
    ("placeto_paper_zero_shot", "held_out_greedy",
     ("--preset=paper", "--held_out=family:tiny[3]"), (
        "watch_cluster=k80:2", "max_groups=4", "num_episodes=2", "network.rounds=1", "order=random",
        "environment.start=random", "reward=final", "transform_layers=3")),
    ("gdp_zero_shot", "over_single", ("--policy=gdp",), (
        "max_devices=3", "segment=64", "batch_size=2", "epochs=1", "width=8", "rounds=1",
        "layers=1", "heads=2"))])
def test_policies_train_on_a_family_and_their_weights_place_another_graph(
    run_program, tmp_path, cheaply, method, shown, flags, fields):
  _trained(run_program, shown, *flags, "--graphs=family:tiny[0:2]", "--clusters=k80:2",
           f"--root_dir={tmp_path / 'run'}", *(f"--set={field}" for field in fields))
  sidecar = json.loads((tmp_path / "run" / "weights" / "weights.json").read_text())
  assert method.startswith("gdp") or sidecar["config"]["environment"]["reward"] == "final"
  placed = run_program(
      "place", "--graph=family:tiny[4]", "--cluster=k80:2", f"--method={method}",
      f"--policy_weights={tmp_path / 'run'}", "--max_groups=4", "--max_evaluations=6",
      f"--out={tmp_path / 'placed'}")
  assert placed.code == 0 and method in placed.out, placed.err
