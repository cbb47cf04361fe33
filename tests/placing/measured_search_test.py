"""Searching by measured steps, with a measurer that answers from a formula."""

import numpy as np
import pytest

from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import MeasurementError
from placeto_tf.grouping import group_ops
from placeto_tf.placing.measured_search import search_measured
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.runtime.measuring import MeasuredStep


class _FakeMeasurer:
  """Real steps take 1000 us plus 100 us for each op on another device than `goal`."""

  def __init__(self, graph, cluster, goal=None, fails=lambda placement: False):
    self.graph, self.cluster, self.fails = graph, cluster, fails
    self.goal = np.zeros(graph.num_ops) if goal is None else goal
    self.measured = []

  def true_us(self, indices):
    return 1000.0 + 100.0 * float((indices != self.goal).sum())

  def try_measure(self, placement):
    indices = placement.indices(self.graph, self.cluster)
    self.measured.append(indices)
    if self.fails(indices):
      return MeasuredStep.failed("out of memory")
    time_us = self.true_us(indices)
    return MeasuredStep(time_us, time_us, time_us, 6, np.full(6, time_us))


@pytest.fixture(name="problem")
def problem_fixture(graph, cluster):
  costs = estimate_costs(graph, cluster, cache=False)
  grouping = group_ops(graph, costs, allowed_devices(graph, cluster), max_groups=12)
  return PlacementProblem(graph, costs, cluster, grouping)


def _found(problem):
  rng = np.random.default_rng(1)
  spread = rng.integers(0, 2, problem.num_groups).astype(np.int32)[problem.grouping.group_of_op]
  n = problem.graph.num_ops
  return {"metis": spread, "expert": np.ones(n, np.int32), "single": np.zeros(n, np.int32)}


def test_one_device_and_the_expert_split_come_first_and_none_is_measured_twice(problem):
  measurer = _FakeMeasurer(problem.graph, problem.cluster)
  found = search_measured(problem, measurer, _found(problem), max_measurements=9)
  first_two = {measurer.measured[0].tobytes(), measurer.measured[1].tobytes()}
  assert first_two == {_found(problem)[name].tobytes() for name in ("single", "expert")}
  assert found.measurements == len(measurer.measured) == 9
  assert len({placement.tobytes() for placement in measurer.measured}) == 9


def test_a_machine_that_slows_down_does_not_decide(problem):
  # All ops on device 0 is best. It is measured last, when the machine is slowest.
  measurer = _FakeMeasurer(problem.graph, problem.cluster)
  placements = {"expert": _found(problem)["expert"], "metis": _found(problem)["single"]}
  found = search_measured(problem, measurer, placements, max_measurements=2)
  assert found.step.step_time_us > 0 and found.placement.sum() == 0
  assert found.measurements == 2


def test_the_search_goes_on_around_the_best_measured(problem):
  goal = _found(problem)["metis"]
  measurer = _FakeMeasurer(problem.graph, problem.cluster, goal)
  start = {"single": np.zeros(problem.graph.num_ops, np.int32)}
  found = search_measured(problem, measurer, start, max_measurements=40, seed=3)
  assert measurer.true_us(found.placement) < measurer.true_us(start["single"])
  again = search_measured(
      problem, _FakeMeasurer(problem.graph, problem.cluster, goal), start, max_measurements=40,
      seed=3)
  assert again.placement.tolist() == found.placement.tolist()


def test_failures_count_and_the_search_goes_on(problem):
  measurer = _FakeMeasurer(
      problem.graph, problem.cluster, fails=lambda indices: bool((indices == 1).all()))
  found = search_measured(problem, measurer, _found(problem), max_measurements=5)
  assert found.failures == 1 and found.measurements == 5
  assert found.by_placer["expert"].failure == "out of memory"
  assert "1 could not be run" in str(found) and "as fast as single" in str(found)


class _LosesWorkers(_FakeMeasurer):
  """The workers do not come back after so many measurements."""

  def __init__(self, graph, cluster, after):
    super().__init__(graph, cluster)
    self.after = after

  def try_measure(self, placement):
    if len(self.measured) == self.after:
      raise MeasurementError("worker 1 ended as it started (signal 9): no message")
    return super().try_measure(placement)


def test_what_was_measured_before_the_workers_were_lost_for_good_counts(problem):
  measurer = _LosesWorkers(problem.graph, problem.cluster, after=2)
  found = search_measured(problem, measurer, _found(problem), max_measurements=9)
  assert found.measurements == 2 and found.placement.sum() == 0
  assert "worker 1 ended" in found.stopped and "ended early: worker 1" in str(found)
  with pytest.raises(MeasurementError, match="worker 1 ended as it started"):
    search_measured(problem, _LosesWorkers(problem.graph, problem.cluster, after=0),
                    _found(problem), max_measurements=9)
