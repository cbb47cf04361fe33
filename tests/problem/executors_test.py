"""Calls and runs of a search give the same here and on Ray, also where a process dies."""

import os
import signal

import pandas as pd
import pytest
from ray_here import MARKS, on_ray_fixture, ray  # noqa: F401

import graph_files
from placeto_tf.errors import PlacementError, SetupError
from placeto_tf.evaluation import EvaluationConfig, evaluate
from placeto_tf.graphs import load_graph
from placeto_tf.placing import registry, running
from placeto_tf.placing.run import place
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.executors import LOCAL, InProcess, OnRay, result_of
from placeto_tf.search.independent_runs import Runs
from placeto_tf.training.collecting import Collecting

pytestmark = [*MARKS, pytest.mark.usefixtures("on_ray")]


@pytest.fixture(params=["here", "on Ray"], name="executor")
def executor_fixture(request, on_ray):
  return InProcess() if request.param == "here" else on_ray


# Functions within functions travel to Ray's processes, which cannot import the modules of tests.


def test_calls_return_what_they_find(executor):
  shared = executor.share({"base": 10})
  assert list(executor.map(lambda x: shared.get()["base"] + x, range(5))) == [10, 11, 12, 13, 14]
  assert executor.submit(lambda x, y: x - y, 5, y=3).result() == 2


def test_errors_of_calls_are_those_that_they_raise(executor):
  def fail():
    raise PlacementError("a sentence for the user")

  with pytest.raises(PlacementError, match="^a sentence for the user$"):
    result_of(executor.submit(fail))


def test_a_process_makes_its_collector_once_and_results_have_the_order_of_specs(executor):
  def make(values):
    played = []

    def collect(weights, spec):
      played.append(spec)
      return values[spec] + weights, len(played)

    return collect

  with Collecting(executor, 2, make, ["a", "b", "c"]) as collecting:
    found = collecting.collect("w", (2, 0, 1, 0)) + collecting.collect("v", (1,) * 8)
  assert [text for text, _ in found] == ["cw", "aw", "bw", "aw"] + ["bv"] * 8
  assert max(count for _, count in found) > 1  # collectors are kept


def test_a_call_whose_process_dies_is_made_again(on_ray, tmp_path):
  def die_once(path):
    if not os.path.exists(path):
      with open(path, "w", encoding="utf-8"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"

  assert result_of(on_ray.submit(die_once, str(tmp_path / "died"))) == "done"


def test_a_call_that_is_lost_whenever_it_is_made_is_a_sentence(on_ray):
  def die():
    os.kill(os.getpid(), signal.SIGKILL)

  with pytest.raises(SetupError, match="a call on Ray was lost 4 times"):
    result_of(on_ray.submit(die))


def test_an_interrupt_in_a_call_here_is_raised_where_it_was_submitted():
  def interrupt():
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    InProcess().submit(interrupt)


def test_rows_are_equal_but_for_seconds_and_replay(tmp_path):
  graph = graph_files.write(graph_files.meta_graph_def(), tmp_path / "graph.meta")
  config = EvaluationConfig(
      graphs=(graph,), clusters=("k80:2",), methods=("single", "annealing", "auto_unlearned"),
      seeds=(0, 1), max_evaluations=60, max_groups=6)
  here = evaluate(config, str(tmp_path / "here"))
  seen = []
  there = evaluate(config, str(tmp_path / "there"), ray=LOCAL,
                   progress=lambda done, total, row: seen.append((done, total)))
  assert [(done, 6) for done in range(1, 7)] == seen
  pd.testing.assert_frame_equal(here.drop(columns="seconds"), there.drop(columns="seconds"))


def _anneal(problem, executor, budget=None):
  placement = running.run(
      problem, registry.find("annealing"), budget or Budget(max_evaluations=300), 0,
      runs=Runs(3, executor))
  return (placement.tolist(), problem.search_log.evaluations,
          [(turn, objective_us) for turn, _, objective_us in problem.search_log.history])


def test_runs_on_ray_find_what_they_find_on_threads(sixty_ops):
  assert _anneal(sixty_ops(), OnRay(ray)) == _anneal(sixty_ops(), InProcess())


def test_an_interrupt_ends_the_tasks(sixty_ops):
  problem = sixty_ops()
  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1))

  def interrupt(_):
    raise KeyboardInterrupt

  problem.search_log.observer = interrupt
  with pytest.raises(KeyboardInterrupt):
    _anneal(problem, OnRay(ray), Budget(max_seconds=6000.0))
  assert problem.search_log.best_placement is not None


def test_place_gives_the_same_placement_with_its_runs_on_ray(tmp_path):
  graph = load_graph(graph_files.meta_graph_def())
  options = dict(method="annealing", max_evaluations=60, independent_runs=2, max_groups=6)
  here = place(graph, "k80:2", progress=False, **options)
  # As the program calls it: what shows progress does not travel.
  with open(tmp_path / "shown", "w", encoding="utf-8") as shown:
    there = place(
        graph, "k80:2", ray=LOCAL, progress=lambda *_: shown.write("."),
        root_dir=str(tmp_path), **options)
  assert there.indices.tolist() == here.indices.tolist()
  assert there.evaluations == here.evaluations
