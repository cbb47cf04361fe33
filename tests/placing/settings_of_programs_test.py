"""Programs that have changed TensorFlow's settings place and train as plain ones, to the bit."""

import pathlib

import pytest

import subprograms

PROGRAM = pathlib.Path(__file__).with_name("in_programs.py")
# Those that change how Keras 3 makes a model's step, and all others, which Keras 2 runs with, too.
# A program has several of them where none hides what another one does.
OF_KERAS = ["mixed_float16", "floatx", "check_numerics+numpy", "eagerly+other_thread",
            "device_scope+xla", "name_scope+determinism"]
NAMES = [*OF_KERAS, "mixed_bfloat16", "v1", "graph_mode", "strategy_scope", "default_graph",
         "hard_placement+log_placement+one_thread+asyncio"]


@pytest.fixture(scope="module", name="found", params=("2", "3"), ids=("keras_2", "keras_3"))
def found_fixture(request):
  # Beside Keras 3, Keras 2 runs those that Keras 3 does not.
  names = OF_KERAS if request.param == "3" else NAMES[len(OF_KERAS) * subprograms.HAS_KERAS_3:]
  return subprograms.run_with_keras(request.param, PROGRAM, ",".join(["plain", *names]))


def test_a_plain_program_places_replicates_plans_and_trains(found):
  plain = found["plain"]
  assert "error" not in plain and plain["plan"] > 0 and plain["changed"] == []
  assert plain["weights"] == plain["unplaced"] and plain.get("replicas", [0, True])[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_changes_no_result_and_is_left_as_it_was(name, found):
  assert "error" not in found[name]
  for key, value in found[name].items():
    if "unplaced" in found[name] and key in ("plan", "weights"):
      # Where TensorFlow traces another step: compared with the unplaced model of the same program.
      assert key == "plan" or value == found[name]["unplaced"]
    elif key != "unplaced":
      assert value == found["plain"][key], key
