"""A Keras model that is compiled placed trains, evaluates, is saved and loaded as any other."""

import pathlib

import pytest

import subprograms

_PROGRAM = pathlib.Path(__file__).parent.parent / "placements" / "keras_fit.py"


@pytest.fixture(scope="module", params=["2", "3"], ids=["keras_2", "keras_3"], name="found")
def found_fixture(request):
  """What `keras_fit.py` saw."""
  parts = ("first_batch", "composites") if request.param == "2" and subprograms.HAS_KERAS_3 else ()
  return subprograms.run_with_keras(request.param, _PROGRAM, *parts)


@pytest.mark.parametrize("case", ["first_batch", "planned"])
def test_fit_and_train_on_batch_give_what_they_give_unplaced(found, case):
  assert found[case]["equal"] == found[case]["all"]
  assert found[case]["same_weights"] and found[case]["predicts"]


@pytest.mark.parametrize("case", ["first_batch", "planned"])
def test_the_step_takes_what_was_promised_on_both_devices(found, case):
  assert found[case]["applied"] == found[case]["promised"] > 0
  assert found[case]["devices"] == 2
  assert "placed as simulated" in found[case]["text"][1]


def test_a_saved_model_is_loaded_with_its_weights_and_trains_on(found):
  assert found["first_batch"]["loaded"] and found["first_batch"]["loaded_trains_on"]


def test_a_step_is_placed_at_the_first_batch_and_a_partial_one_runs_on_the_same_devices(found):
  case = found["first_batch"]
  assert "when the first batch comes" in case["text"][0]
  assert case["steps"][:2] == [[8, "placed"], [6, "alike"]]
  assert {how for _, how in case["steps"][1:]} == {"alike"}
  assert "Batches of 6 run on the same devices" in case["text"][1]


def test_several_steps_are_run_in_one_execution(found):
  assert found["first_batch"]["batches"] == 6 and found["planned"]["batches"] == 2


def test_an_example_dataset_says_what_to_place(found):
  assert found["changes"]["planned"]


def test_compiling_again_is_noticed_and_can_be_placed_again_and_undone(found):
  case = found["changes"]
  assert len(case["warnings"]) == 1 and "call compile_placed again" in case["warnings"][0]
  assert case["again"] == ["placed", "alike"] and not case["own"]


def test_a_placed_step_that_is_faster_is_kept_and_trains_as_the_plain_one(found):
  """With dropout and a partial last batch, to the last bit: the trial draws from copies."""
  case = found["verdicts"]["faster"]
  assert "placed when the first batch comes" in case["waiting"]
  assert "(measured, 20 steps each;" in case["text"] and "Kept." in case["text"]
  assert case["equal"] and case["same_weights"] and case["moved"] and case["applied"]
  assert case["devices"] == ["CPU:0", "CPU:1"]
  assert case["steps"][0] == [8, "placed"]


def test_a_placed_step_that_is_slower_leaves_the_model_as_it_was(found):
  case = found["verdicts"]["slower"]
  assert "Not faster here: the model trains as before." in case["text"]
  assert case["equal"] and case["same_weights"] and case["devices"] == ["CPU:0"]
  assert {how for _, how in case["steps"]} == {"unplaced"} and not case["applied"]


def test_what_is_printed_is_ten_lines_with_short_names_of_devices(found):
  for case in found["verdicts"]["faster"], found["verdicts"]["slower"]:
    assert len(case["text"].splitlines()) <= 10 and "/job:" not in case["text"]
    assert "CPU:0, CPU:1" in case["text"] and "\nPlanned: " in case["text"]
    assert "object at" not in case["repr"] and "\n" not in case["repr"]
    assert case["text"].splitlines()[-1] == "To look at it: tensorboard --logdir=events"


def test_a_saved_placement_is_carried_out_by_another_model_of_the_kind(found):
  case = found["verdicts"]["loaded"]
  assert case["equal"] and case["devices"] == ["CPU:0", "CPU:1"]


def test_a_plan_for_devices_that_are_not_here_leaves_the_model_as_it_is(found):
  case = found["plans"]
  assert case["unchanged"] and case["batch"] == 8 and case["timeline"] > 1000
  assert "/GPU:3" in case["devices"] and "lower bound" in case["table"]
  assert "simulated" in case["repr"]
  assert "for GPU:0, GPU:1, GPU:2, GPU:3, CPU:0, but this process has CPU:0, CPU:1; load it in" in (
      case["elsewhere"])
  assert "batch_size" in case["unsaid"]


def test_batch_size_says_enough_or_an_example_batch_is_asked_for(found):
  case = found["batch_sizes"]
  assert case["named"] == {"a": [4, 3], "b": [4, 1]} and case["data"] == 4
  assert "compiled without a loss" in case["lossless"]
  assert "dimensions that batch_size does not say" in case["free"]
  for error in [case["unbuilt"], case["lossless"], *filter(None, [case["called"]])]:
    assert "give data=(inputs, targets), an example batch" in error


def test_specs_that_an_error_names_are_planned_for_as_they_stand(found):
  assert found["batch_sizes"]["told"] == [
      {"words": [4, 32], "kinds": [4, 32]}, {"each": [4, 32, 2], "kind": [4]}]


def test_batches_of_composite_tensors_train_as_they_do_unplaced(found):
  """Of ragged tensors and graphs, whose sizes differ from batch to batch, there is one step."""
  for case in found["composites"].values():
    assert case["equal"] and case["steps"] == ["placed"]


def test_replicas_of_each_batch_train_the_model_as_one_step_does(found):
  """Batches of 8, 6 and 5: the last is not divided."""
  case = found["replicas"]
  assert case["losses"] < 1e-5 and case["metrics"] < 1e-5 and case["weights"] < 1e-5
  assert case["steps"] == [[8, "placed", 2], [6, "alike", 2], [5, "alike", 1]]
  assert case["global_batch"] == 8 and case["devices"] == ["0", "1"]
  assert case["applied"] == case["promised"] > 0
  assert "2 replicas share each batch" in case["text"]
  assert "the batch of 7 examples cannot be divided among 2 replicas" in case["refused"]


def test_what_cannot_be_placed_is_refused(found):
  mirrored, bare, eager, number = found["changes"]["errors"]
  assert "MirroredStrategy" in mirrored and "compile it first" in bare
  assert "run_eagerly" in eager and "Keras model" in number
