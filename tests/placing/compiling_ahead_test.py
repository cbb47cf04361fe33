"""What a search needs is compiled once, before its clock starts."""

import contextlib
import os
import types

import pytest

from placeto_tf.placing import compiling_ahead, registry
from placeto_tf.placing.compiling_ahead import STAGE, compile_ahead


@pytest.fixture(name="stages")
def stages_fixture(tmp_path, monkeypatch):
  """Names of stages, in a folder and a process in which nothing was compiled ahead."""
  monkeypatch.setattr(
      compiling_ahead, "compiling", types.SimpleNamespace(folder=lambda: str(tmp_path)))
  monkeypatch.setattr(compiling_ahead, "_done", set())
  return []


def _stage(stages):
  @contextlib.contextmanager
  def stage(name):
    stages.append(name)
    yield
  return stage


def test_each_engine_and_method_is_compiled_once(
    stages, tmp_path, monkeypatch, make_problem, make_cluster):
  ran = []
  monkeypatch.setattr(
      compiling_ahead.running, "run", lambda problem, method, budget: ran.append(method.name))
  plain, extended = (make_problem([1.0] * 3, cluster=make_cluster(2, **extension))
                     for extension in ({}, {"transfer_per_destination": True}))
  annealing = registry.find("annealing")
  for problem in (plain, plain, extended):
    compile_ahead(problem, annealing, _stage(stages))
  assert stages == [STAGE] * 2 and ran.count("annealing") == 2
  assert sorted(os.listdir(tmp_path)) == ["ExtendedEngine.annealing", "ReferenceEngine.annealing"]
  monkeypatch.setattr(compiling_ahead, "_done", set())  # another process
  compile_ahead(plain, annealing, _stage(stages))
  assert len(stages) == 2


def test_auto_compiles_its_parts_without_touching_the_problem(
    stages, monkeypatch, make_problem, make_cluster):
  ran = []
  monkeypatch.setattr(compiling_ahead.running, "run", lambda problem, method, budget: ran.append(
      (method.name, len(problem.graph.op_names))))
  problem = make_problem([1.0] * 30, cluster=make_cluster(3, host=True))
  compile_ahead(problem, registry.find("auto_unlearned"), _stage(stages))
  assert {"single", "metis", "heft", "annealing"} <= {name for name, _ in ran}
  assert "placeto" not in {name for name, _ in ran}
  assert problem.search_log.evaluations == 0 and {ops for _, ops in ran} == {40}


@pytest.mark.parametrize("engine, extension", [
  ("ReferenceEngine", {}), ("ExtendedEngine", {"transfer_per_destination": True})])
def test_all_parts_of_auto_really_run(
    stages, tmp_path, make_problem, make_cluster, engine, extension):
  """It fills the cache of compiled code for all tests: see tests/conftest.py."""
  problem = make_problem([1.0] * 3, cluster=make_cluster(2, **extension))
  compile_ahead(problem, registry.find("auto"), _stage(stages))
  assert stages == [STAGE] and os.listdir(tmp_path) == [f"{engine}.auto"]
