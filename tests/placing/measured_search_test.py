"""Choosing by measured steps, with a measurer that answers from a formula."""

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
  """Real steps take 1000 us plus 100 us for each op that is not on device 0.

  The machine gets slower with every measurement; only what is relative to the reference stays.
  """

  def __init__(self, graph, cluster, fails=lambda placement: False):
    self.graph, self.cluster, self.fails = graph, cluster, fails
    self.measured = []

  def true_us(self, indices):
    return 1000.0 + 100.0 * float((indices != 0).sum())

  def try_measure(self, placement):
    indices = placement.indices(self.graph, self.cluster)
    self.measured.append(indices)
    if self.fails(indices):
      return MeasuredStep.failed("out of memory")
    slower = 1 + 0.2 * len(self.measured)
    time_us = self.true_us(indices) * slower
    return MeasuredStep(time_us, time_us, time_us, 6, np.full(6, time_us), 2000.0 * slower)


@pytest.fixture(name="problem")
def problem_fixture(graph, cluster):
  costs = estimate_costs(graph, cluster, cache=False)
  allowed = allowed_devices(graph, cluster)
  grouping = group_ops(graph, costs, allowed, max_groups=12)
  return PlacementProblem(graph, costs, cluster, grouping)


def _found(problem):
  rng = np.random.default_rng(1)
  spread = rng.integers(0, 2, problem.num_groups).astype(np.int32)[problem.grouping.group_of_op]
  n = problem.graph.num_ops
  return {"metis": spread, "expert": np.ones(n, np.int32), "single": np.zeros(n, np.int32)}


def test_each_different_placement_is_measured_once(problem):
  measurer, found = _FakeMeasurer(problem.graph, problem.cluster), _found(problem)
  result = search_measured(problem, measurer, {**found, "best": found["metis"]})
  assert len(measurer.measured) == 3 and set(result.by_placer) == {*found, "best"}
  assert result.by_placer["best"] is result.by_placer["metis"]


def test_a_machine_that_slows_down_does_not_decide(problem):
  # All ops on device 0 is best. It is measured last, when the machine is slowest.
  result = search_measured(
      problem, _FakeMeasurer(problem.graph, problem.cluster), _found(problem))
  assert result.placement.sum() == 0
  assert result.step.step_time_us > 1000 and "1.00x as fast as single" in str(result)


def test_failures_are_told_and_none_that_runs_is_an_error(problem):
  measurer = _FakeMeasurer(
      problem.graph, problem.cluster, fails=lambda indices: bool((indices == 1).all()))
  result = search_measured(problem, measurer, _found(problem))
  assert result.by_placer["expert"].failure == "out of memory"
  assert "placements of 1 placers could not be run" in str(result)
  measurer.fails = lambda indices: True
  with pytest.raises(MeasurementError, match="no placement could be run.*out of memory"):
    search_measured(problem, measurer, _found(problem))
