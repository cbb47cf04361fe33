"""Some hundred of the mutants of fuzz_graphs.py, which tries thousands."""

import graph_mutants
import pytest

_MUTANTS = 320
_COSTED = 12  # of those of each format that load, for each takes a process


@pytest.mark.heavy
@pytest.mark.parametrize("format", graph_mutants.FORMATS)
def test_mutants_are_read_or_refused_with_an_error_of_the_package(format, tmp_path):
  parsing, outcomes, costed = 0, [], 0
  numbers = range(graph_mutants.FORMATS.index(format), _MUTANTS, len(graph_mutants.FORMATS))
  for number in numbers:
    kind, content, parses, done = graph_mutants.mutant(1, number)
    assert kind == format
    found = graph_mutants.read(kind, content, str(tmp_path), with_costs=costed < _COSTED)
    costed += found["stage"] == "cost"
    parsing += parses
    outcomes.append(found["outcome"])
    assert found["outcome"] != "raised", (number, done, found["traceback"])
    assert found["load_s"] < 10, (number, done)
    assert found.get("error", "x").count("\n") == 0, (number, done, found["error"])
  assert parsing >= len(numbers) / 2
  # Mutants that are all refused would test little.
  assert outcomes.count("refused") >= 10
  assert outcomes.count("loaded") + outcomes.count("costed") >= 10


def test_a_mutant_depends_on_seed_and_number_alone():
  assert graph_mutants.mutant(1, 5) == graph_mutants.mutant(1, 5)
  assert graph_mutants.mutant(1, 5)[1] != graph_mutants.mutant(2, 5)[1]
