"""Runs a program in this process, as its user would from the command line."""

import dataclasses
import importlib
import sys

import pytest
from absl import flags


@dataclasses.dataclass
class Finished:
  code: int
  out: str
  err: str


def _forget_programs():
  """Programs share names of flags: only one may be imported at a time."""
  for module, defined in list(flags.FLAGS.flags_by_module_dict().items()):
    if module.startswith("placeto_tf.scripts"):
      for flag in list(defined):
        if flag.name in flags.FLAGS:
          delattr(flags.FLAGS, flag.name)
  for module in [name for name in sys.modules if name.startswith("placeto_tf.scripts.")]:
    del sys.modules[module]


@pytest.fixture(name="run_program")
def run_program_fixture(monkeypatch, capfd):
  """`run_program("place", "--flag=value", ...)` -> exit code and what was printed."""

  def run(program, *args):
    _forget_programs()
    main = importlib.import_module(f"placeto_tf.scripts.{program}").main
    shared_flags = importlib.import_module("placeto_tf.scripts.shared_flags")
    capfd.readouterr()
    flags.FLAGS.unparse_flags()
    monkeypatch.setattr("sys.argv", ["program.py", *map(str, args)])
    with pytest.raises(SystemExit) as exited:
      shared_flags.run_program(main)
    captured = capfd.readouterr()
    return Finished(exited.value.code or 0, captured.out, captured.err)

  yield run
  _forget_programs()
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
