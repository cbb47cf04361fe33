"""Programs that have changed TensorFlow's settings place and train as plain ones, to the bit."""

import pathlib

import pytest

import subprograms

PROGRAM = pathlib.Path(__file__).with_name("in_programs.py")
NAMES = [
    "mixed_float16", "mixed_bfloat16", "floatx", "v1", "graph_mode", "check_numerics", "eagerly",
    "numpy", "hard_placement", "device_scope", "strategy_scope", "xla", "one_thread", "asyncio",
    "other_thread", "name_scope", "default_graph", "determinism", "log_placement"]
# TensorFlow itself traces another step of a Keras model: with casts, or with checks between ops.
ANOTHER_STEP = {"mixed_float16", "mixed_bfloat16", "floatx", "numpy", "check_numerics"}


@pytest.fixture(scope="module", name="found", params=("2", "3"), ids=("keras_2", "keras_3"))
def found_fixture(request):
  return subprograms.run_with_keras(request.param, PROGRAM, ",".join(["plain", *NAMES]))


def test_a_plain_program_places_replicates_plans_and_trains(found):
  plain = found["plain"]
  assert "error" not in plain and plain["plan"] > 0 and plain["changed"] == []
  assert plain["weights"] == plain["unplaced"] and plain.get("replicas", [0, True])[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_changes_no_result_and_is_left_as_it_was(name, found):
  assert "error" not in found[name]
  for key, value in found[name].items():
    if name in ANOTHER_STEP and key in ("plan", "weights"):
      # Training is compared with that of the unplaced model in the same program.
      assert key == "plan" or value == found[name]["unplaced"]
    elif key != "unplaced":
      assert value == found["plain"][key], key
