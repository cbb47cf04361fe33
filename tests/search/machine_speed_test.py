"""What a search finds in so many evaluations is the same on a fast and on a slow machine."""

import itertools
import types

import pytest

from placeto_tf.placing import registry, running
from placeto_tf.problem import compiled_evaluation
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind

METHODS = ["auto_unlearned", "placeto", *(
    method.name for method in registry.methods() if method.kind is Kind.SEARCH)]


@pytest.mark.parametrize("name", METHODS)
def test_the_length_of_compiled_blocks_changes_nothing(name, sixty_ops, monkeypatch):
  """Blocks grow on a clock that stands still, and are of one evaluation where each takes long."""
  found = []
  for clock in (lambda: 0.0, itertools.count().__next__):
    monkeypatch.setattr(
        compiled_evaluation, "time", types.SimpleNamespace(perf_counter=clock))
    problem = sixty_ops()
    placement = running.run(problem, registry.find(name), Budget(max_evaluations=500), 3)
    found.append((placement.tolist(), problem.search_log.evaluations, [
        (turn, objective_us) for turn, _, objective_us in problem.search_log.history]))
  assert found[0] == found[1]
