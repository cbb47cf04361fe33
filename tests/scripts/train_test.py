"""The program that trains, and what it says to bad input."""

import json

import pytest

from placeto_tf.policies.device_pointer import scorer
from placeto_tf.zoo import families


@pytest.fixture(autouse=True)
def tiny_family(monkeypatch):
  monkeypatch.setitem(
      families._FAMILIES, "tiny",
      lambda rng, index: f"enas_recurrent:cell={index}:batch=2:steps=2:nodes=2:hidden=4:vocab=9")


def test_it_trains_shows_progress_and_says_that_it_is_done(run_program, tmp_path):
  flags = ("--graphs=family:tiny[0:2]", "--clusters=k80:2,random[1]", "--max_groups=8,12",
           "--held_out=family:tiny[3]", "--watch_cluster=k80:2", f"--root_dir={tmp_path / 'run'}",
           "--annealed=3",
           "--iterations=2", "--rows=2", "--steps=3")
  done = run_program("train", *flags)
  assert done.code == 0, done.err
  assert "[2/2] reward" in done.err and "held_out_ratio" in done.err
  assert "Done: 2 iterations" in done.out
  assert json.loads((tmp_path / "run" / "done.json").read_text())["iterations"] == 2
  assert run_program("train", *flags).out == done.out


@pytest.mark.parametrize("flags, message", [
    (("--max_groups=many",), "--max_groups=many are not whole numbers"),
    (("--clusters=random",), "expected random[3]"),
    (("--discount=2",), "discount is 2.0"),
])
def test_bad_input_ends_in_one_sentence(run_program, tmp_path, flags, message):
  done = run_program(
      "train", "--graphs=family:tiny[0]", f"--root_dir={tmp_path / 'run'}", *flags)
  assert done.code == 2 and message in done.err and "Traceback" not in done.err


def test_without_shipped_weights_a_pretrained_start_is_refused(run_program, tmp_path, monkeypatch):
  monkeypatch.setattr(scorer, "pretrained_directory", lambda: None)
  done = run_program(
      "train", "--graphs=family:tiny[0]", f"--root_dir={tmp_path / 'run'}",
      "--warm_start=pretrained")
  assert done.code == 2 and "ships no trained weights" in done.err


def test_placeto_trains_on_a_family_and_its_weights_place_another_graph(run_program, tmp_path):
  flags = ("--policy=placeto", "--graphs=family:tiny[0:2]", "--held_out=family:tiny[3]",
           "--clusters=k80:2", "--watch_cluster=k80:2", "--max_groups=6", "--iterations=2",
           "--rows=2", "--rounds=1", "--order=random", "--start=random", "--reward=final",
           "--nostart_times", f"--root_dir={tmp_path / 'run'}")
  done = run_program("train", *flags)
  assert done.code == 0, done.err
  assert "[2/2]" in done.err and "held_out_greedy" in done.err
  assert "Done: 2 iterations" in done.out
  assert run_program("train", *flags).out == done.out
  sidecar = json.loads((tmp_path / "run" / "weights" / "weights.json").read_text())
  assert sidecar["placeto"]["environment"]["reward"] == "final"
  placed = run_program(
      "place", "--graph=family:tiny[4]", "--cluster=k80:2", "--method=placeto_zero_shot",
      f"--policy_weights={tmp_path / 'run'}", "--max_groups=6", "--max_evaluations=40",
      f"--out={tmp_path / 'placed'}")
  assert placed.code == 0, placed.err
  assert "placeto_zero_shot" in placed.out


@pytest.mark.parametrize("flags, message", [
    (("--max_groups=6,8",), "placeto takes one number"),
    (("--simple_aggregator", "--simple_partitioner"), "exclude one another"),
    (("--clusters=k80:2,k80:3", "--max_groups=6"), "they must be alike"),
])
def test_bad_choices_for_placeto_end_in_one_sentence(run_program, tmp_path, flags, message):
  done = run_program(
      "train", "--policy=placeto", "--graphs=family:tiny[0]", f"--root_dir={tmp_path / 'run'}",
      *flags)
  assert done.code == 2 and message in done.err and "Traceback" not in done.err


def test_gdp_trains_on_several_graphs_and_its_weights_place_another_one(run_program, tmp_path):
  flags = ("--policy=gdp", "--graphs=family:tiny[0:2]", "--clusters=k80:2", "--max_devices=3",
           "--segment=32", "--rows=2", "--iterations=2", f"--root_dir={tmp_path / 'run'}")
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


@pytest.mark.parametrize("policy", ["rnn", "hierarchical"])
def test_a_policy_made_for_one_graph_leaves_a_placement(run_program, tmp_path, policy):
  flags = (f"--policy={policy}", "--graphs=family:tiny[0]", "--clusters=k80:2", "--rows=2",
           "--iterations=2", f"--root_dir={tmp_path / 'run'}")
  done = run_program("train", *flags)
  assert done.code == 0, done.err
  assert "[2/2]" in done.err and "best_ms" in done.err
  assert (tmp_path / "run" / "placement.json").exists()
  assert run_program("train", *flags).out == done.out
  wrong = run_program("train", *flags[:1], "--graphs=family:tiny[0:2]", "--root_dir=unused")
  assert wrong.code == 2 and "expected one" in wrong.err and "Traceback" not in wrong.err
