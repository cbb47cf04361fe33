"""Compiled code is kept where nobody else may write."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from placeto_tf.errors import SetupError
from placeto_tf.simulation import compiled_step, compiling, event_loop

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


def test_code_of_other_sources_is_not_used(tmp_path, monkeypatch):
  for source in ("simulation/tables.py", "search/loop.py", "search/plain.py"):
    (tmp_path / source).parent.mkdir(exist_ok=True)
    (tmp_path / source).write_text("x = 1\n")
  (tmp_path / "search/loop.py").write_text("from placeto_tf.simulation.compiling import compiled\n")
  monkeypatch.setattr(compiling, "__file__", str(tmp_path / "simulation/compiling.py"))
  states = [compiling._state_of_sources()]
  for source in ("search/plain.py", "simulation/tables.py", "search/loop.py"):
    with open(tmp_path / source, "a", encoding="utf-8") as file:
      file.write("y = 2\n")
    states.append(compiling._state_of_sources())
  assert states[0] == states[1] and len(set(states)) == 3


def test_code_that_was_not_used_for_long_is_removed(tmp_path):
  own = tmp_path / "cache" / "placeto_tf" / "compiled"
  for name, used in (("old", 0), ("young", time.time() - 86_400)):
    (own / name).mkdir(parents=True)
    os.utime(own / name, (used, used))
  for folder in (own.parent.parent, own.parent, own):
    folder.chmod(0o700)
  assert _run(tmp_path).stdout == "4\n"
  names = {path.name for path in own.iterdir()}
  assert len(names) == 2 and "young" in names
  assert len(_kept(own)) == 1


def test_a_compiler_that_is_switched_off_is_named():
  with pytest.raises(SetupError, match="NUMBA_DISABLE_JIT is set"):
    compiled_step.address_of(event_loop.simulate_range.py_func)  # what numba gives then
