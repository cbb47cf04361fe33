"""From where methods start."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from placeto_tf.errors import SetupError
from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method, plain


@pytest.fixture(name="problem")
def problem_fixture(random_problem):
  return random_problem(5)


def _recording(kind):
  """A method that notes how many evaluations there were when it began, and the best then."""
  seen = []

  def placer(problem, budget, seed, **own):
    seen.append((problem.search_log.evaluations, problem.search_log.best_placement))
    return np.zeros(problem.graph.num_ops, np.int32)

  return Method("recording", kind, plain(placer)), seen


def test_a_policy_without_a_start_begins_at_the_best_baseline(problem):
  method, seen = _recording(Kind.POLICY)
  running.run(problem, method, Budget(max_evaluations=100))
  assert seen[0][0] > 2 and seen[0][1] is not None


@pytest.mark.parametrize("kind", [Kind.SEARCH, Kind.STANDALONE, Kind.ONE_SHOT, Kind.CONSTRUCTION])
def test_others_make_their_own_starts(problem, kind):
  method, seen = _recording(kind)
  running.run(problem, method, Budget(max_evaluations=100))
  assert seen == [(0, None)]
  assert [run.name for run in problem.search_log.method_runs] == ["recording"]


@pytest.mark.parametrize("kind", list(Kind))
def test_a_given_start_counts_as_one_evaluation_of_those_that_take_one(problem, kind):
  method, seen = _recording(kind)
  start = problem.allowed_ops.argmax(axis=1).astype(np.int32)
  running.prepare(problem, method, Budget(max_evaluations=100), start=start)
  running.run(problem, method, Budget(max_evaluations=100))
  assert seen[0][0] == int(kind.takes_start)
  assert (seen[0][1] is not None) == kind.takes_start


def test_a_policy_whose_budget_is_used_up_is_not_loaded(problem):
  def load():
    raise AssertionError("was loaded")

  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1).astype(np.int32))
  found = running.run(problem, Method("policy", Kind.POLICY, load), Budget(max_evaluations=1))
  np.testing.assert_array_equal(found, problem.search_log.best_placement)


@contextlib.contextmanager
def changed(put, value, usual):
  put(value)
  yield
  put(usual)


KERAS = tf.keras


@pytest.mark.parametrize("make, said", [
    (lambda: tf.Graph().as_default(), "eager execution is off"),
    (lambda: tf.distribute.MirroredStrategy(["/CPU:0"]).scope(), "strategy is in scope"),
    (lambda: changed(lambda on: (tf.debugging.enable_check_numerics if on else
                                 tf.debugging.disable_check_numerics)(), True, False),
     "check_numerics"),
    (lambda: changed(lambda mode: tnp.experimental_enable_numpy_behavior(
        dtype_conversion_mode=mode), "legacy", "off"), "NumPy's behaviour is on"),
    (lambda: changed(KERAS.backend.set_floatx, "float64", "float32"), "floatx is float64"),
    (lambda: changed(KERAS.mixed_precision.set_global_policy, "mixed_float16", "float32"),
     "dtype policy is mixed_float16")])
@pytest.mark.parametrize("method", ["rnn", "placeto_paper"])
def test_networks_refuse_settings_under_which_they_compute_something_else(
    make, said, method, problem):
  with make(), pytest.raises(SetupError, match=f"{said}.*--method={method}"):
    running.run(problem, registry.find(method), Budget(max_evaluations=20))
