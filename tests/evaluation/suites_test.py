"""What suites fix is what evaluate.py takes."""

import pytest

from placeto_tf import zoo
from placeto_tf.evaluation import EvaluationConfig, suites


@pytest.mark.parametrize("name", suites.SUITES)
def test_a_suite_is_a_configuration_of_graphs_that_exist(name):
  flags = suites.flags_of(name)
  EvaluationConfig(
      **{field: tuple(flags[field]) for field in ("graphs", "clusters", "methods", "start")},
      seeds=tuple(map(int, flags["seeds"])), max_evaluations=flags["max_evaluations"])
  assert len(flags["seeds"]) >= 3
  assert max(map(int, flags["budgets"])) == flags["max_evaluations"]
  for graph in flags["graphs"]:
    assert zoo.resolve(zoo.families.member(graph) if zoo.families.is_family(graph) else graph)


def test_the_held_out_suite_has_only_members_that_are_kept_for_tests():
  numbers = [int(graph[:-1].partition("[")[2]) for graph in suites.SUITES["held_out"]["graphs"]]
  assert all(24 <= number < 32 for number in numbers)
