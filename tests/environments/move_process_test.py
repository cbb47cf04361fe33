"""The move process: levels, worse moves undone, and compiled moves equal to single steps."""

import dataclasses
import math

import numpy as np
import pytest

from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.environments import made_problems
from placeto_tf.environments.move_process import MoveProcess
from placeto_tf.environments.schedule import Schedule
from placeto_tf.errors import PlacementError
from placeto_tf.policies.placeto import placers
from placeto_tf.policies.placeto.placers import search
from placeto_tf.policies.placeto.scorer import ScorerWeights
from placeto_tf.problem.budget import Budget
from random_problem import random_problem

SINGLE = Schedule(rounds=(210,), vary=0.0, several=0)


def balancer():
  """Weights by hand: the less loaded a device is, the more a group gains by going there."""
  hidden_1, bias_1 = np.zeros((len(NAMES), 32)), np.zeros(32)
  hidden_1[NAMES.index("load_excess"), 0], bias_1[0] = -1, 2
  hidden_2, output = np.zeros((32, 32)), np.zeros(32)
  hidden_2[0, 0] = output[0] = 1
  return ScorerWeights(hidden_1, bias_1, hidden_2, np.zeros(32), output)


def start_of(problem):
  return np.zeros(problem.graph.num_ops, np.int32)


def process(problem, seed=0, **changed):
  start = problem.allowed_ops.argmax(axis=1).astype(np.int32)
  return MoveProcess(problem, start, dataclasses.replace(SINGLE, **changed),
                     rng=np.random.default_rng(seed))


def open_moves(run):
  return [tuple(each) for each in np.argwhere(run.open).tolist()]


def step_by_step(run, score):
  """Makes the moves of `MoveProcess.run` one by one, in plain Python."""
  while not run.over:
    scores = run.scores(score)
    if run.gathering:
      limit = max(0.15, 0.5 * scores.max())
      while run.gathering and scores.max() > limit:
        row, device = divmod(int(scores.argmax()), scores.shape[1])
        scores[row] = -np.inf
        last = not np.isfinite(scores).any() or len(run._gathered) + 1 == run.most
        run.step(row, device)
        if last:
          break
      else:
        run.stop()
      continue
    some = run.some
    while run.some is some and not run.over:
      run.step(*divmod(int(np.where(run.open, scores, -np.inf).argmax()), scores.shape[1]))


@pytest.mark.parametrize("seed", range(6))
def test_compiled_moves_are_those_of_single_steps(seed):
  found = []
  for compiled in (True, False):
    problem = random_problem(num_ops=200, num_groups=24, devices=f"k80:{2 + seed % 3}", seed=seed)
    run = MoveProcess(
        problem, start_of(problem), Schedule(rounds=(20, 30, 270)), budget=Budget(320),
        rng=np.random.default_rng(seed), most_groups=16 if seed % 2 else 256)
    run.run(balancer().of_process) if compiled else step_by_step(run, balancer().of_process)
    found.append((run.placement.tolist(), [each[::2] for each in problem.search_log.history],
                  problem.search_log.evaluations, run._rng.bit_generator.state))
  assert found[0] == found[1]


def test_a_worse_move_is_undone_and_not_tried_again_and_a_better_one_is_kept():
  run, rng, seen = process(random_problem(num_ops=200, num_groups=24)), np.random.default_rng(0), []
  while not run.over:
    level, some, before_us = run.level, run.some, run.objective_us
    move = open_moves(run)[int(rng.integers(len(open_moves(run))))]
    fall = run.step(*move)
    seen.append(fall > 0)
    assert run.objective_us == pytest.approx(before_us / np.exp(fall)) and fall >= 0
    if not run.over and run.level is level and run.some is some:
      assert move not in open_moves(run)
  assert any(seen) and not all(seen)
  found = run.problem.evaluate_ops(run.placement)
  assert found.objective_us[0] == run.objective_us
  assert (run.step_time_us, run.fits) == (found.step_time_us[0], found.fits[0])


def test_several_groups_move_together_in_one_evaluation():
  problem = random_problem(num_ops=200, num_groups=24)
  run = process(problem, levels=(1.0,), several=21)
  moves = dict(open_moves(run)[::5][:6])
  before, used, some = run.groups.copy(), problem.search_log.evaluations, run.some
  assert run.gathering and len(moves) < run.most
  assert not any(run.step(*move) for move in moves.items())
  assert problem.search_log.evaluations == used
  fall = run.stop()
  assert problem.search_log.evaluations == used + 1
  expected = before.copy()
  if fall > 0:
    expected[some[list(moves)]] = list(moves.values())
  np.testing.assert_array_equal(run.groups, expected)


def test_of_moves_side_by_side_a_better_one_is_made_and_two_placements_without_one_end_a_level():
  problem, rng = random_problem(num_ops=200, num_groups=24), np.random.default_rng(0)
  run, made, failed = process(problem, rounds=(140,) * 3, vary=0.5), 0, 0
  while not run.over:
    chosen = [open_moves(run)[i] for i in rng.integers(len(open_moves(run)), size=5)]
    rows, devices = np.array(chosen).T
    level, before, before_us = run.level, run.groups.copy(), run.objective_us
    used, some = problem.search_log.evaluations, run.some
    falls = run.step_side_by_side(rows, devices, rng)
    assert problem.search_log.evaluations == used + 5
    if falls.max() > 1e-5:
      made, failed = made + 1, 0
      made_us = before_us * np.exp(-falls)
      assert np.isclose(made_us, run.objective_us, rtol=1e-12).any()
      if run.level is level:
        (group,) = np.flatnonzero(run.groups != before)
        at = list(zip(some[rows], devices)).index((group, run.groups[group]))
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
  run, sizes = process(problem, levels=(0.25, 1.0), rounds=(6, 6)), []
  while not run.over:
    sizes.append(run.level.num_groups)
    run.step(*open_moves(run)[0])
  assert len(sizes) == 12 and sizes[0] < sizes[3] and sizes[6] < sizes[9]


def test_where_nothing_can_move_it_is_over_and_has_evaluated_its_start_alone():
  problem = random_problem(devices="k80:1")
  assert process(problem).over and problem.search_log.evaluations == 1


@pytest.mark.parametrize("wrong", [
    {"levels": ()}, {"levels": (0.0,)}, {"rounds": ()}, {"vary": -1.0}])
def test_a_schedule_without_a_meaning_is_refused(wrong):
  with pytest.raises(PlacementError, match="expected|at least"):
    Schedule(**wrong)


def test_a_level_ends_where_no_move_makes_the_placement_better():
  problem = random_problem(num_ops=200, num_groups=12)
  run = process(problem, levels=(1.0,), rounds=(10_000,))
  run.run(balancer().of_process)
  groups, allowed = run.groups, run.tables.allowed
  for group in run.tables.movable:
    for device in np.flatnonzero(allowed[group]):
      if device != groups[group]:
        moved = groups.copy()
        moved[group] = device
        assert problem.evaluate_ops(
            run.level.grouping.expand(moved)).objective_us[0] >= run.objective_us


def test_moves_that_failed_from_a_placement_are_not_tried_again_on_other_levels_and_rounds():
  used = []
  for levels, rounds in (((1.0,), (500,)), ((1.0, 4.0), (500, 500))):
    problem = random_problem(num_ops=12, num_groups=12)  # each op is a group of both levels
    process(problem, levels=levels, rounds=rounds).run(balancer().of_process)
    used.append(problem.search_log.evaluations)
  assert used[0] == used[1] > 13


@pytest.mark.parametrize("evaluations", [2, 40, 400])
def test_the_budget_is_kept_and_the_result_never_worse_than_the_start(evaluations):
  problem = random_problem(num_ops=200, num_groups=24)
  start_us = problem.evaluate_ops(start_of(problem)).objective_us[0]
  found = search(
      problem, start_of(problem), ScorerWeights.untrained(), Budget(max_evaluations=evaluations))
  assert problem.search_log.evaluations <= evaluations
  assert problem.evaluate_ops(found).objective_us[0] <= start_us


def test_turns_of_moves_and_annealing_begin_from_the_best_and_go_to_who_gained_more(monkeypatch):
  problem, turns = random_problem(num_ops=300, num_groups=40), []

  def noted(name, run):
    def turn(*args, **options):
      before_us, used = problem.search_log.best_objective_us, problem.search_log.evaluations
      run(*args, **options)
      used = problem.search_log.evaluations - used
      turns.append((name, used, math.log(before_us / problem.search_log.best_objective_us) / used))
    return turn

  monkeypatch.setattr(placers, "anneal", noted("annealing", placers.anneal))
  monkeypatch.setattr(MoveProcess, "run", noted("moves", MoveProcess.run))
  found = search(problem, start_of(problem), balancer(), Budget(1200))
  assert problem.search_log.evaluations == 1200
  assert problem.evaluate_ops(found).objective_us[0] == problem.search_log.best_objective_us
  assert [name for name, _, _ in turns[:2]] == ["moves", "annealing"]
  assert {name for name, _, _ in turns[1:]} == {"moves", "annealing"}
  last = {"annealing": math.inf, "moves": math.inf}
  for (name, _, gain), (following, _, _) in zip(turns[1:], turns[2:]):
    other = "moves" if name == "annealing" else "annealing"
    last[name], last[other] = gain, 0.5 * last[other]
    assert following == (name if gain > last[other] else other)
  sizes = [used for _, used, _ in turns[1:-1]]
  assert all(b > a for a, b in zip(sizes, sizes[1:]))


def test_where_no_op_can_be_moved_the_search_ends():
  problem = random_problem(devices="k80:1")
  search(problem, start_of(problem), balancer(), Budget(max_seconds=1000))
  assert problem.search_log.evaluations < 10


def test_until_a_placement_fits_moves_that_relieve_full_devices_come_first():
  problem = made_problems.make("made:pipelines[1002]")  # each accelerator holds a part of the model
  run = MoveProcess(problem, start_of(problem))
  free_bytes = problem.cluster.memory_bytes - problem.evaluate_ops(
      run.placement).peak_memory_bytes[0]
  assert free_bytes[0] < 0 and (free_bytes[1:] > 0).all()
  held = np.bincount(run.level.grouping.group_of_op, problem.costs.persistent_bytes)[run.some]
  relief = run.open & (held[:, None] > 0) & (held[:, None] <= free_bytes)
  scores = run.scores(ScorerWeights.untrained().of_process)
  assert relief.any()
  full = np.maximum(-free_bytes, 0).sum()
  assert scores[relief].min() > scores[run.open & (held[:, None] > free_bytes + full)].max(
      initial=-np.inf)
  # Of the moves to devices with space, one that relieves most comes first.
  best = np.unravel_index(np.where(relief, scores, -np.inf).argmax(), scores.shape)[0]
  assert run.state.held_bytes[run.some[best], 0] >= min(
      run.state.held_bytes[run.some[relief.any(axis=1)], 0].max(), full) - 1e-6
