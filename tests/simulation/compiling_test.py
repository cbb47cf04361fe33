"""Compiled code is kept where nobody else may write."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
_PROGRAM = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from placeto_tf.simulation.compiling import compiled
import double
print(double.double(2))
"""
_MODULE = """
from placeto_tf.simulation.compiling import compiled

@compiled()
def double(x):
  return 2 * x
"""


def _run(tmp_path, **environ):
  (tmp_path / "double.py").write_text(_MODULE)
  return subprocess.run(
      [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False,
      env={**{key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"},
           "PYTHONPATH": ROOT, "XDG_CACHE_HOME": str(tmp_path / "cache"), **environ})


def _kept(folder):
  return [str(path) for path in pathlib.Path(folder).rglob("*.nbi")]


def test_code_is_kept_in_a_folder_of_its_own_and_not_beside_the_source(tmp_path):
  done = _run(tmp_path)
  assert done.stdout == "4\n", done.stderr
  own = tmp_path / "cache" / "placeto_tf" / "compiled"
  assert _kept(tmp_path) == _kept(own) != []
  assert own.stat().st_mode & 0o777 == 0o700


def test_numbas_own_variable_chooses_another_place(tmp_path):
  (tmp_path / "other").mkdir(mode=0o755)
  assert _run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "other")).stdout == "4\n"
  assert _kept(tmp_path) == _kept(tmp_path / "other") != []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="has no modes")
def test_a_place_that_others_may_write_to_is_refused_if_it_was_chosen_and_else_not_used(tmp_path):
  shared = tmp_path / "shared"
  shared.mkdir()
  shared.chmod(0o777)
  done = _run(tmp_path, NUMBA_CACHE_DIR=str(shared))
  assert "NUMBA_CACHE_DIR: " in done.stderr and "others may write to" in done.stderr
  done = _run(tmp_path, XDG_CACHE_HOME=str(shared))
  assert done.stdout == "4\n" and "is not kept" in done.stderr
  assert _kept(tmp_path) == []
