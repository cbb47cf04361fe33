"""The decision process: levels from coarse to fine, worse moves undone, nothing tried twice."""

import numpy as np
import pytest

from placeto_tf.encoding.move_process import MoveProcess, ProcessConfig
from random_problem import random_problem


def process(problem, most_observed=64, seed=0, **config):
  start = problem.allowed_ops.argmax(axis=1).astype(np.int32)
  return MoveProcess(
      problem, start, ProcessConfig(**{"rounds": 1, "evaluations": 30, **config}), most_observed,
      np.random.default_rng(seed))


def open_moves(run):
  return [(int(run.some[m]), int(d)) for m, d in np.argwhere(run.open[run.some])]


def test_a_worse_move_is_undone_and_not_tried_again_and_a_better_one_is_kept():
  run, rng, seen = process(random_problem(num_ops=200, num_groups=24)), np.random.default_rng(0), []
  while not run.over:
    level, before_us = run.level, run.objective_us
    group, device = open_moves(run)[int(rng.integers(len(open_moves(run))))]
    fall = run.step(np.array([group]), np.array([device]))
    seen.append(fall > 0)
    assert run.objective_us == (before_us if fall < 0 else pytest.approx(before_us / np.exp(fall)))
    if not run.over and run.level is level and fall < 0:
      assert (group, device) not in open_moves(run)
  assert any(seen) and not all(seen)
  found = run.problem.evaluate_ops(run.placement)
  assert found.objective_us[0] == run.objective_us


def test_several_groups_move_together_in_one_evaluation():
  problem = random_problem(num_ops=200, num_groups=24)
  run = process(problem, levels=(1.0,))
  moves = dict(open_moves(run)[::5])
  before, used = run.groups.copy(), problem.search_log.evaluations
  fall = run.step(np.array(list(moves)), np.array(list(moves.values())))
  assert problem.search_log.evaluations == used + 1
  if not run.over:
    expected = before.copy()
    if fall >= 0:
      expected[list(moves)] = list(moves.values())
    np.testing.assert_array_equal(run.groups, expected)


def test_of_moves_side_by_side_a_better_one_is_made_and_two_placements_without_one_end_a_level():
  problem, rng = random_problem(num_ops=200, num_groups=24), np.random.default_rng(0)
  run, made, failed = process(problem, rounds=3, evaluations=20), 0, 0
  while not run.over:
    chosen = [open_moves(run)[i] for i in rng.integers(len(open_moves(run)), size=5)]
    groups, devices = np.array(chosen).T
    level, before, before_us = run.level, run.groups.copy(), run.objective_us
    used = problem.search_log.evaluations
    falls = run.step_side_by_side(groups, devices, rng)
    assert problem.search_log.evaluations == used + 5
    if falls.max() > 1e-5:
      made, failed = made + 1, 0
      made_us = before_us * np.exp(-falls)
      assert np.isclose(made_us, run.objective_us, rtol=1e-12).any()
      if run.level is level:
        (group,) = np.flatnonzero(run.groups != before)
        at = chosen.index((group, run.groups[group]))
        assert made_us[at] == pytest.approx(run.objective_us, rel=1e-12)
    elif run.level is level:
      assert run.objective_us == before_us and (run.groups == before).all()
      failed += 1
      assert failed < 2
    else:
      failed = 0
  assert made > 5 and run.objective_us == problem.evaluate_ops(run.placement).objective_us[0]


def test_a_level_ends_with_its_evaluations_and_rounds_with_their_levels():
  problem = random_problem(num_ops=200, num_groups=24)
  run, sizes = process(problem, levels=(0.25, 1.0), evaluations=3, rounds=2, vary=0.0), []
  while not run.over:
    sizes.append(run.level.num_groups)
    run.step(*np.array(open_moves(run)[:1]).T)
  assert len(sizes) == 12 and sizes[0] < sizes[3] and sizes[6] < sizes[9]


def test_where_nothing_can_move_it_is_over_and_has_evaluated_its_start_alone():
  problem = random_problem(devices="k80:1")
  assert process(problem).over and problem.search_log.evaluations == 1
