"""The program that trains, and what it says to bad input."""

import json
import pathlib
import re

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "train.py"


def test_it_trains_shows_progress_and_says_that_it_is_done(run_program, tmp_path):
  fields = ("steps=2", "batch=32", "rounds=1", "evaluations=16", "arms=32", "capacity=64",
            "width=8")
  flags = ("--graphs=family:tiny[0:2]", "--clusters=k80:2,random[1]",
           "--held_out=family:tiny[3]", f"--root_dir={tmp_path / 'run'}", "--iterations=2",
           "--set", "max_groups=8,12", "--set", "watch_cluster=k80:2",
           *(f"--set={field}" for field in fields))
  done = run_program("train", *flags)
  assert done.code == 0, done.err
  assert "[2/2] " in done.err and "held_out_ratio" in done.err
  assert "Done: 2 iterations" in done.out
  assert json.loads((tmp_path / "run" / "done.json").read_text())["iterations"] == 2
  assert run_program("train", *flags).out == done.out


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


def test_help_lists_the_fields_of_every_policy_with_their_true_defaults(run_program):
  done = run_program("train", "--help")
  assert done.code == 0
  flags, *fields = done.out.split("Fields for --policy=")
  assert len(set(re.findall(r"(?m)^  --(\w+):", flags))) == 15
  sections = {each.partition(" (")[0]: each for each in fields}
  names = [name for name in sections if "preset" not in name]
  assert f"Policy to train: {', '.join(sorted(names))}, or" in " ".join(flags.split())
  assert set(sections) == {"placeto", "placeto, preset paper", "gdp"}
  for policy, lines in (
      ("placeto", ("--clusters=k80:4,random[1]", "epsilon=0.5", "width=64")),
      ("placeto, preset paper", (
          "--iterations=4000", "max_groups=48", "placeto.network.rounds=8")),
      ("gdp", ("--checkpoint_every=50", "training.final_learning_rate=0.0003"))):
    assert {f"  {line}" for line in lines} <= set(sections[policy].splitlines())


def test_the_published_process_trains_on_a_family_and_its_weights_place_another_graph(
    run_program, tmp_path, cheaply):
  flags = ("--preset=paper", "--graphs=family:tiny[0:2]", "--held_out=family:tiny[3]",
           "--clusters=k80:2", "--iterations=2", f"--root_dir={tmp_path / 'run'}",
           "--set=watch_cluster=k80:2", "--set=max_groups=6", "--set=num_episodes=2",
           "--set=network.rounds=1", "--set=order=random", "--set=environment.start=random",
           "--set=reward=final", "--set=transform_layers=3")
  done = run_program("train", *flags)
  assert done.code == 0, done.err
  assert "[2/2]" in done.err and "held_out_greedy" in done.err
  assert "Done: 2 iterations" in done.out
  assert run_program("train", *flags).out == done.out
  sidecar = json.loads((tmp_path / "run" / "weights" / "weights.json").read_text())
  assert sidecar["placeto"]["environment"]["reward"] == "final"
  placed = run_program(
      "place", "--graph=family:tiny[4]", "--cluster=k80:2", "--method=placeto_paper_zero_shot",
      f"--policy_weights={tmp_path / 'run'}", "--max_groups=6", "--max_evaluations=40",
      f"--out={tmp_path / 'placed'}")
  assert placed.code == 0, placed.err
  assert "placeto_paper_zero_shot" in placed.out


def test_gdp_trains_on_several_graphs_and_its_weights_place_another_one(
    run_program, tmp_path, cheaply):
  flags = ("--policy=gdp", "--graphs=family:tiny[0:2]", "--clusters=k80:2", "--iterations=2",
           "--set=max_devices=3", "--set=segment=64", "--set=batch_size=2", "--set=epochs=1",
           "--set=width=8", "--set=rounds=1", "--set=layers=1", "--set=heads=2",
           f"--root_dir={tmp_path / 'run'}")
  done = run_program("train", *flags)
  assert done.code == 0, done.err
  assert "[2/2]" in done.err and "over_single" in done.err
  assert "Done: 2 iterations" in done.out
  assert run_program("train", *flags).out == done.out
  placed = run_program(
      "place", "--graph=family:tiny[4]", "--cluster=k80:2", "--method=gdp_zero_shot",
      f"--policy_weights={tmp_path / 'run'}", "--max_evaluations=40",
      f"--out={tmp_path / 'placed'}")
  assert placed.code == 0, placed.err
  assert "gdp_zero_shot" in placed.out
