"""Some of the mutants of fuzz_inputs.py, which tries thousands."""

import input_mutants
import pytest

_MUTANTS = 60


@pytest.fixture(autouse=True)
def families_of_this_test_alone(monkeypatch):
  """Mutants of sets of graphs make a family known."""
  from placeto_tf.zoo import families

  monkeypatch.setattr(families, "FAMILIES", dict(families.FAMILIES))


@pytest.mark.heavy
@pytest.mark.parametrize("name", input_mutants.KINDS)
def test_mutants_are_read_or_refused_in_one_sentence(name, tmp_path):
  kind = input_mutants.kinds((name,))[name]
  outcomes = []
  specials = [(sorted(kind.files)[0], b"", special) for special in input_mutants.SPECIAL]
  for number in range(_MUTANTS + len(specials)):
    file, content, done = input_mutants.mutant(kind, 1, number) if number < _MUTANTS else specials[
        number - _MUTANTS]
    input_mutants.clear(str(tmp_path))
    input_mutants.write(kind, str(tmp_path), file, content, done)
    outcome, text = input_mutants.read(kind, str(tmp_path))
    assert outcome in ("loaded", "refused"), (number, file, done, text)
    outcomes.append(outcome)
  assert outcomes.count("refused") >= 10


def test_a_sound_file_of_every_kind_is_read(tmp_path):
  for name, kind in input_mutants.kinds(("placement", "cluster", "feeds", "study")).items():
    input_mutants.clear(str(tmp_path))
    input_mutants.write(kind, str(tmp_path), "", b"", "")
    assert input_mutants.read(kind, str(tmp_path)) == ("loaded", ""), name


def test_a_mutant_depends_on_seed_and_number_alone():
  kind = input_mutants.kinds(("cluster",))["cluster"]
  assert input_mutants.mutant(kind, 1, 5) == input_mutants.mutant(kind, 1, 5)
  assert input_mutants.mutant(kind, 1, 5) != input_mutants.mutant(kind, 2, 5)
