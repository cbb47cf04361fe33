"""docs/policy_step_by_step.md, block after block, and what the door refuses."""

import pathlib
import re
import sys

import numpy as np
import pytest

import graph_files
import placeto_tf as placeto
from placeto_tf import policies
from placeto_tf.errors import PlacementError, PlacetoError
from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from random_problem import random_problem

DOCUMENT = pathlib.Path(__file__).resolve().parents[1] / "docs" / "policy_step_by_step.md"


def blocks():
  """(file, code) of each block of Python; the file is "" for code that stands by itself."""
  return re.findall(r"(?:`(message_policy/\w+\.py)`[^\n]*\n\n)?```python\n(.*?)```",
                    DOCUMENT.read_text(), re.DOTALL)


def test_the_code_of_the_page_runs(capsys):
  names = {}
  for file, code in blocks():
    if not file:
      exec(compile(code, str(DOCUMENT), "exec"), names)
  shown = capsys.readouterr().out
  assert "simulated" in shown and "compute_us" in shown and "option (" in shown
  placed = {node.name: node.device for node in names["placed"].node}
  assert len({placed[f"MatMul{i}"] for i in ("", "_1", "_2", "_3")}) > 1
  log = names["environment"].process.problem.search_log
  assert names["placement"].step_time_us <= log.improvements[0].objective_us
  clock = names["real"].process.problem.clock
  assert 1 < len(clock.times_us) <= names["real"].process.problem.search_log.evaluations
  assert names["own"].process.objective_us == 102.0  # of a device, and the host's ops


def test_a_policy_of_another_package_is_trained_saved_loaded_and_placed_with(
    tmp_path, monkeypatch):
  for file, code in blocks():
    if file:
      (tmp_path / file).parent.mkdir(exist_ok=True)
      (tmp_path / file).write_text(code)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setattr(policies, "_used", {})
  monkeypatch.setenv("MESSAGE_POLICY", str(tmp_path / "saved"))
  from message_policy import training

  losses = training.train(
      [graph_files.meta_graph_def()], "k80:2", str(tmp_path / "saved"), max_groups=8)
  assert np.mean(losses[-10:]) < np.mean(losses[:10])
  policies.use("message_policy")
  problem = random_problem(num_ops=60, num_groups=8)
  start_us = problem.evaluate_ops(problem.allowed_ops.argmax(axis=1)).objective_us[0]
  found = running.run(problem, registry.find("message_policy"), Budget(40), seed=0)
  assert problem.search_log.evaluations <= 40
  assert problem.evaluate_ops(found).objective_us[0] < start_us
  for name in [each for each in sys.modules if each.startswith("message_policy")]:
    del sys.modules[name]


def test_a_policy_for_another_number_of_arms_and_unknown_timings_are_refused():
  graph = graph_files.meta_graph_def()
  environment = placeto.load_environment(graph, "k80:2", arms=9, max_groups=4)
  with pytest.raises(PlacetoError, match=r"load_environment\(..., arms=2049\)"):
    placeto.run_policy(environment, placeto.load_policy())
  placeto.run_policy(environment, placeto.load_policy(arms=9))
  for timing, said in (("measured", "'session'"), (lambda _: -1.0, "more than 0")):
    with pytest.raises(PlacementError, match=said):
      placeto.load_environment(graph, "k80:2", timing, max_groups=4)
  with pytest.raises(PlacetoError, match="no field 'timing'"):
    placeto.train(["zoo:rnnlm"], "nowhere", policy="gdp", timing="session")


def test_a_placement_is_timed_once_and_compiled_searches_refuse_another_clock():
  timed = []
  environment = placeto.load_environment(
      graph_files.meta_graph_def(), "k80:2", max_groups=4, max_evaluations=20,
      timing=lambda placement: timed.append(tuple(placement.values())) or float(len(timed)))
  placeto.run_policy(environment, placeto.load_policy())
  problem = environment.process.problem
  assert len(timed) == len(set(timed)) <= problem.search_log.evaluations
  with pytest.raises(PlacementError, match="run a policy"):
    running.run(problem, registry.find("annealing"), Budget(100), seed=0)


def test_training_by_real_steps_resumes(tmp_path):
  path = graph_files.write(graph_files.meta_graph_def(), tmp_path / "graph.meta")
  seen = []

  def stop(iteration, figures):
    seen.append(iteration or figures["problems"])
    if len(seen) == 3:
      raise KeyboardInterrupt

  options = dict(
      clusters=("cpu:2",), timing="session", iterations=3, checkpoint_every=1, settings=[
          "width=8", "rounds=4", "levels=1.0", "moves=2", "steps=1", "batch=4", "arms=17",
          "max_groups=4"])
  with pytest.raises(KeyboardInterrupt):
    placeto.train([str(path)], str(tmp_path / "run"), progress=stop, **options)
  figures = placeto.train([str(path)], str(tmp_path / "run"), progress=stop, **options)
  assert seen == [1, 1, 2, 1, 2, 3] and np.isfinite(figures["loss"])
  environment = placeto.load_environment(str(path), "k80:2", max_groups=4, max_evaluations=9)
  placeto.run_policy(environment, placeto.load_policy(str(tmp_path / "run")))
  with pytest.raises(PlacetoError, match="session"):
    placeto.train([str(path)], str(tmp_path / "run"), **{**options, "timing": "simulated"})
