"""Models of transformers and keras-hub, whose sequences have no length; skipped without these."""

import pathlib

import pytest

import subprograms

_PROGRAM = pathlib.Path(__file__).parent.parent / "placements" / "packaged_models.py"


@pytest.fixture(scope="module", params=["transformers", "keras_hub"], name="found")
def found_fixture(request):
  """What `packaged_models.py` saw."""
  pytest.importorskip(request.param, exc_type=ImportError)
  if request.param == "transformers":
    return subprograms.run(_PROGRAM, "2")
  return subprograms.run(_PROGRAM, "3", without=("TF_USE_LEGACY_KERAS",))


def test_without_a_length_of_sequences_specs_are_named_that_are_planned_for(found):
  assert "dimensions that batch_size does not say" in found["asked"]
  assert found["told"] == 4 and len(found["inputs"]) == 3


def test_with_an_example_batch_it_is_planned_timed_and_trains(found):
  assert found["steps"] == [4] and "A step" in found["verdict"]
  assert found["losses"][-1] < found["losses"][0]
