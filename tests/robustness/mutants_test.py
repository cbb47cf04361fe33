"""Mutants of users' files are read, or refused in one sentence.

  scripts/with_env python -m pytest -m heavy -n0 --mutants=5000 tests/robustness
"""

import time

import mutants
import pytest

_LIMIT_S = 30  # of CPU time, which nothing may take


@pytest.mark.heavy
@pytest.mark.parametrize("name", mutants.KINDS)
def test_mutants_are_read_or_refused_in_one_sentence(name, tmp_path, request):
  kind, refused = mutants.KINDS[name](), 0
  count = request.config.getoption("--mutants")
  for number in range(count):
    changed, content, done = mutants.mutant(kind, number)
    started = time.process_time()
    said = mutants.read(kind, str(tmp_path), changed, content)
    assert "\n" not in said, (number, changed, done, said)
    assert time.process_time() - started < _LIMIT_S, (number, changed, done)
    refused += bool(said)
  assert refused >= count // 10


@pytest.mark.parametrize("name", ["meta_graph_def", "placement", "cluster", "feeds"])
def test_a_sound_file_is_read_and_a_mutant_depends_on_its_number_alone(name, tmp_path):
  kind = mutants.KINDS[name]()
  assert mutants.read(kind, str(tmp_path)) == ""
  assert mutants.mutant(kind, 5) == mutants.mutant(kind, 5) != mutants.mutant(kind, 6)
