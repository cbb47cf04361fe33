"""Runs a program in this process, as its user would from the command line."""

import dataclasses
import importlib.util
import pathlib
import sys

import numpy as np
import pytest
from absl import flags

from placeto_tf.clusters import Cluster
from placeto_tf.costs import guarded
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.programs import entry_point
from placeto_tf.zoo import families
from tracing import eagerly, without_saved_models  # noqa: F401

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
_PREFIX = "program_under_test_"  # of the modules' names: absl files flags under them


@pytest.fixture(autouse=True)
def tiny_family(monkeypatch):
  """`family:tiny[0]` and so on: graphs that take no time."""
  monkeypatch.setitem(
      families.FAMILIES, "tiny",
      lambda rng, index: f"enas_recurrent:cell={index}:batch=2:steps=2:nodes=2:hidden=4:vocab=9")


@pytest.fixture(name="cheaply")
def cheaply_fixture(monkeypatch, eagerly):  # noqa: F811
  """Training without tracing, and without a SavedModel: both take longer than two iterations."""
  without_saved_models(monkeypatch)


@dataclasses.dataclass
class Finished:
  code: int
  out: str
  err: str


def _forget_programs():
  """Programs share names of flags: only one may be imported at a time, with those it imports."""
  programs = {path.stem for path in _SCRIPTS.rglob("*.py")}
  for module, defined in list(flags.FLAGS.flags_by_module_dict().items()):
    if module in programs or module.startswith((_PREFIX, "placeto_tf.programs.")):
      for flag in list(defined):
        if flag.name in flags.FLAGS:
          delattr(flags.FLAGS, flag.name)
  for module in [name for name in sys.modules if name in programs or name.startswith(_PREFIX)]:
    del sys.modules[module]


def _load(program):
  """The module scripts/PROGRAM.py, or that of a benchmark."""
  path = next(_SCRIPTS.glob(f"**/{program}.py"))
  spec = importlib.util.spec_from_file_location(_PREFIX + program, path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  spec.loader.exec_module(module)
  return module


@pytest.fixture(name="load_program")
def load_program_fixture():
  """`load_program("gpu_kernels")` -> its module, whose flags are forgotten after the test."""

  def load(program):
    _forget_programs()
    return _load(program)

  yield load
  _forget_programs()


@pytest.fixture(name="run_program")
def run_program_fixture(monkeypatch, capfd, signal_handlers_kept):
  """`run_program("place", "--flag=value", ...)` -> exit code and what was printed."""
  # A fork of this process, in which TensorFlow has run, waits for its threads until it is stopped.
  monkeypatch.setattr(guarded, "prepare", lambda: None)
  monkeypatch.setenv("PLACETO_FOR_A_SHELL", "")  # set by programs, and put back after the test

  def run(program, *args):
    _forget_programs()
    module = _load(program)
    start = getattr(module, "run", None) or (lambda: entry_point.run_program(module.main))
    capfd.readouterr()
    flags.FLAGS.unparse_flags()
    monkeypatch.setattr("sys.argv", ["program.py", *map(str, args)])
    with pytest.raises(SystemExit) as exited:
      start()
    captured = capfd.readouterr()
    return Finished(exited.value.code or 0, captured.out, captured.err)

  yield run
  _forget_programs()
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(name="placed_files")
def placed_files_fixture(tmp_path):
  """Writes a graph and two of its placements on two devices: small.meta, one.json, two.json."""
  import graph_files

  def write(text):
    (tmp_path / "small.meta").write_bytes(graph_files.meta_graph_def().SerializeToString())
    graph, cluster = load_graph(str(tmp_path / "small.meta")), Cluster.parse(text)
    samples = np.random.default_rng(0).integers(0, 2, graph.num_ops, np.int32)[graph.colocation]
    for name, indices in (("one", np.zeros_like(samples)), ("two", samples)):
      Placement.from_indices(graph, cluster, indices).save(str(tmp_path / f"{name}.json"))
    return tmp_path

  return write
