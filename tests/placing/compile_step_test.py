"""A training loop of one's own trains placed as it does by itself."""

import json
import pathlib

import pytest

import subprograms

_PROGRAM = pathlib.Path(__file__).parent / "train_loops.py"
_LOOPS = ("subclassed", "gan", "accumulation_inside", "mixed_precision", "minimize", "iterator",
          "module", "actor_critic", "open_signature")
_ALONE = {"iterator"}


@pytest.fixture(scope="module", params=["2", "3"], ids=["keras_2", "keras_3"], name="found")
def found_fixture(request):
  """What `train_loops.py` saw."""
  without = ()
  if request.param == "3":
    pytest.importorskip("keras", minversion="3.0", exc_type=ImportError)
    without = ("TF_USE_LEGACY_KERAS",)
  return subprograms.run(
      _PROGRAM, request.param, "partial,replicas-partial", ",".join(_LOOPS), without=without)


@pytest.mark.parametrize("name", _LOOPS)
def test_a_loop_trains_placed_as_it_does_by_itself(found, name):
  """Losses and all variables, with a smaller last batch."""
  case = found[f"{name} partial"]
  assert "losses" in case, json.dumps(case)
  assert case["losses"] < 2e-6 and case["variables"] < 2e-6
  assert case["devices"] == 2 and {how for how, _ in case["steps"]} <= {"placed", "alike"}


@pytest.mark.parametrize("name", set(_LOOPS) - _ALONE)
def test_two_replicas_train_a_loop_as_one_step_does(found, name):
  case = found[f"{name} replicas-partial"]
  assert "losses" in case, json.dumps(case)
  assert case["losses"] < 2e-6 and case["variables"] < 2e-6
  assert case["replicas"] == 2 and case["devices"] == 2


@pytest.mark.parametrize("name", _ALONE)
def test_a_loop_without_a_batch_to_divide_is_refused_with_a_remedy(found, name):
  assert "next(iterator)" in found[f"{name} replicas-partial"]["refused"]
