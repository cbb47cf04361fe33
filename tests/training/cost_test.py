import dataclasses

import numpy as np

from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.cost import START_US, STEP_TIME_US, SimulatedCost
from random_problem import grouped_graph, random_problem


def test_a_group_starts_when_its_main_op_does():
  problem = random_problem()
  grouped = grouped_graph(problem)
  cost = SimulatedCost(problem, grouped)
  placement = np.arange(problem.num_groups, dtype=np.int32) % 3
  objective_us, components = cost(placement[None])
  result = problem.simulator.simulate(problem.grouping.expand(placement))
  assert objective_us[0] == components[STEP_TIME_US][0] == result.step_time_us
  np.testing.assert_array_equal(components[START_US][0], result.start_us[grouped.main_op])


def test_memory_over_the_limit_is_charged_at_two_seconds_a_gb():
  problem = random_problem()
  small = dataclasses.replace(
      problem.cluster,
      devices=tuple(dataclasses.replace(d, memory_bytes=1000) for d in problem.cluster.devices))
  tight = PlacementProblem(problem.graph, problem.costs, small, problem.grouping)
  placement = np.zeros((1, problem.num_groups), dtype=np.int32)
  objective_us, components = SimulatedCost(tight, grouped_graph(tight))(placement)
  peak = tight.evaluate(placement).peak_memory_bytes[0]
  excess_gb = np.maximum(peak - 1000, 0).sum() / 2**30
  np.testing.assert_allclose(objective_us - components[STEP_TIME_US], 2e6 * excess_gb)


def test_placements_are_counted_by_the_problem():
  problem = random_problem()
  SimulatedCost(problem, grouped_graph(problem))(np.zeros((7, problem.num_groups), dtype=np.int32))
  assert problem.search_log.evaluations == 7
