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
