"""A training loop of one's own trains placed as it does by itself."""

import json
import pathlib

import pytest

import subprograms

_PROGRAM = pathlib.Path(__file__).parent / "train_loops.py"
_LOOPS = ("subclassed", "gan", "accumulation_inside", "mixed_precision", "minimize", "iterator",
          "module", "actor_critic", "open_signature", "recommender")
# With Keras 2 beside Keras 3: how its models, optimizers and loss scales are stepped.
_LEGACY_LOOPS = ("subclassed", "mixed_precision", "minimize")
_DIVIDED = {"subclassed", "gan", "mixed_precision", "minimize", "module", "recommender"}
# Placed without replicas, too: one that is divided, and those that replicas refuse.
_PLACED = ("subclassed", *(name for name in _LOOPS if name not in _DIVIDED))


@pytest.fixture(scope="module", params=["2", "3"], ids=["keras_2", "keras_3"], name="found")
def found_fixture(request):
  """What `train_loops.py` saw."""
  modes, loops = f"partial={'+'.join(_PLACED)},replicas-partial,cases", _LOOPS
  if request.param == "2" and subprograms.HAS_KERAS_3:
    modes, loops = "partial=subclassed,replicas-partial", _LEGACY_LOOPS
  return subprograms.run_with_keras(request.param, _PROGRAM, modes, ",".join(loops))


def difference(case, name):
  """The largest difference of losses and variables, beside what roundings of 16 bits are."""
  assert "losses" in case, json.dumps(case)
  return max(case["losses"], case["variables"]) / (1e3 if name == "mixed_precision" else 1.0)


@pytest.mark.parametrize("name", _PLACED)
def test_a_loop_trains_placed_as_it_does_by_itself(found, name):
  """Losses and all variables, with a smaller last batch."""
  case = found[f"{name} partial"]
  assert difference(case, name) < 2e-6
  assert {how for how, _ in case["steps"]} <= {"placed", "alike"}


def test_most_loops_run_on_both_devices(found):
  devices = [case["devices"] for case in found.values() if "devices" in case]
  assert devices.count(2) > len(devices) / 2


@pytest.mark.parametrize("name", _LOOPS)
def test_two_replicas_train_a_loop_as_one_step_does_or_are_refused(found, name):
  case = found[f"{name} replicas-partial"]
  if "refused" in case:
    assert name not in _DIVIDED and ";" in case["refused"], json.dumps(case)
    return
  assert difference(case, name) < 2e-6
  assert case["replicas"] == 2 and name != "iterator"


def test_a_step_without_a_batch_to_divide_is_told_to_take_one(found):
  assert "next(iterator)" in found["iterator replicas-partial"]["refused"]


def test_a_concrete_function_is_divided_and_takes_its_own_batch_size(found):
  case = found["cases"]["concrete"]
  assert case["loss"] and case["replicas"] == 2 and case["batch"] == 8 and case["placed"] == 8
  assert "cannot be traced" in case["other"]


def test_a_saved_plan_is_carried_out_by_a_step_of_the_kind(found):
  case = found["cases"]["plan"]
  assert abs(case["equal"]) < 1e-6 and case["replicas"] == 2 and "2 replicas" in case["repr"]
  assert "plan_step" in case["elsewhere"]
  assert "Batches of 7 run whole, on the devices of one replica." in case["whole"]


def test_a_saved_plan_keeps_its_statistics_of_batch_normalization(found):
  assert found["cases"]["plan"]["normalized"] == pytest.approx(1.0, rel=1e-5)


def test_replicas_that_are_asked_for_and_not_timed_run_with_a_warning_if_they_are_slower(found):
  case = found["cases"]["untimed"]
  assert case["times"][0] < case["times"][1]
  assert "simulated to be slower" in case["first"] and len(case["warned"]) == 1


def test_an_unknown_option_is_refused_before_the_step_is_traced(found):
  for error in found["cases"]["unknown"]:  # and nothing that the step was called with
    assert "there is no option 'noise'" in error and "kwargs={'noise': ...}" in error


def test_arguments_are_bound_and_checkpoints_and_summaries_go_on(found):
  """Defaults, keywords and tensors for them, and arrays; the variable is moved."""
  case = found["cases"]["loop"]
  assert case["sums"] == [2.5, 2.5, 2.5, -2.5]
  assert case["restored"] == 5.0 and case["device"] == "CPU:1"
  assert "cannot be undone" in case["text"]


def test_the_faster_step_is_kept(found):
  faster, slower = found["cases"]["faster"], found["cases"]["slower"]
  assert "Kept." in faster["text"] and faster["how"] == ["placed", "alike"]
  assert "Not faster here" in slower["text"] and slower["how"] == ["unplaced", "unplaced"]
  assert faster["losses"] < 1e-6 and slower["losses"] < 1e-6


def test_a_step_that_cannot_be_placed_is_refused_with_a_remedy(found):
  *strategies, model, few, shape, odd = found["cases"]["refused"]
  for error in strategies:
    assert "MirroredStrategy" in error and "leave strategy.run out" in error
  assert "compile_placed" in model and "give args=" in few
  assert "check that it runs" in shape
  assert "the batch of 7 examples cannot be divided among 2 replicas" in odd
