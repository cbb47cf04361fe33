"""The program that writes families, and what it says to bad input."""

import json

import pytest


def test_it_writes_a_family_and_shows_progress(run_program, tmp_path):
  out = tmp_path / "new" / "set"
  flags = ("--family=tiny", f"--out={out}", "--cluster=k80:2", "--max_groups=6")
  done = run_program("make_graphs", *flags, "--count=2")
  assert done.code == 0, done.err
  assert "[1/2] tiny_0000.meta" in done.err and "[2/2] tiny_0001.meta" in done.err
  assert "Done: 2 graphs" in done.out
  assert len(json.loads((out / "graphs.json").read_text())["graphs"]) == 2


def test_it_describes_graphs_as_a_table(run_program):
  done = run_program("make_graphs", "--describe=family:tiny[0:2]", "--cluster=k80:1")
  assert done.code == 0, done.err
  lines = done.out.strip().split("\n")
  assert len(lines) == 4 and lines[2].startswith("| `family:tiny[0]` |")


@pytest.mark.parametrize("flags, message", [
    ((), "--family is missing"),
    (("--family=tiny",), "--out is missing"),
    (("--family=tiny", "--out={out}", "--cluster=k81:2"), "k81"),
    (("--describe=bert,brt",), "'brt'"),
])
def test_bad_input_ends_in_one_sentence(run_program, tmp_path, flags, message):
  out = tmp_path / "set"
  done = run_program("make_graphs", *(flag.format(out=out) for flag in flags))
  assert done.code == 2 and message in done.err
  assert "Traceback" not in done.err and not out.exists()
