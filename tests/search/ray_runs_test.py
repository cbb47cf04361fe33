"""Independent runs of a search on Ray equal those on threads here."""

import contextlib
import gc
import time

import pytest

import graph_files
from placeto_tf.errors import SetupError
from placeto_tf.graphs import load_graph
from placeto_tf.placing import registry, running
from placeto_tf.placing.run import place
from placeto_tf.problem.budget import Budget

ray = pytest.importorskip("ray", reason="Ray, an optional extra, is not installed")

from placeto_tf.problem.executors import LOCAL, InProcess, OnRay, executor_at  # noqa: E402
from placeto_tf.search.independent_runs import Runs  # noqa: E402

# Ray 2.51 leaves files open, and does not wait for processes that it has ended.
pytestmark = [
  pytest.mark.filterwarnings("ignore::ResourceWarning"),
  pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", name="here", autouse=True)
def here_fixture():
  """Ray on this machine, for all tests of the module: it takes seconds to start."""
  with contextlib.ExitStack() as stack:
    stack.callback(gc.collect)  # what Ray leaves, while its warnings are ignored
    try:
      stack.enter_context(executor_at(LOCAL))
    except SetupError as error:
      pytest.skip(f"Ray does not start on this machine: {error}")
    yield


def _anneal(problem, executor, budget=None):
  placement = running.run(
      problem, registry.find("annealing"), budget or Budget(max_evaluations=300), 0,
      runs=Runs(3, executor))
  return (placement.tolist(), problem.search_log.evaluations,
          [(turn, objective_us) for turn, _, objective_us in problem.search_log.history])


def test_runs_on_ray_find_what_they_find_on_threads(sixty_ops):
  assert _anneal(sixty_ops(), OnRay(ray)) == _anneal(sixty_ops(), InProcess())


def test_runs_on_ray_end_in_time_and_keep_what_they_found(sixty_ops):
  for max_seconds in (1.0, 10.0, 100.0, 1000.0):
    problem = sixty_ops()
    _anneal(problem, OnRay(ray), Budget(max_seconds=max_seconds))
    if problem.search_log.evaluations > 3:
      break  # in less time Ray's processes may not even have started
  search_log = problem.search_log
  assert search_log.evaluations > 3 and search_log.history[-1][2] == search_log.best_objective_us


def test_an_interrupt_ends_the_tasks(sixty_ops):
  problem = sixty_ops()
  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1))

  def interrupt(_):
    raise KeyboardInterrupt

  problem.search_log.observer = interrupt
  started = time.monotonic()
  with pytest.raises(KeyboardInterrupt):
    _anneal(problem, OnRay(ray), Budget(max_seconds=6000.0))
  assert time.monotonic() - started < 3000 and problem.search_log.best_placement is not None


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
