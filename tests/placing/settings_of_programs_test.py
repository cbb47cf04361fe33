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


@pytest.fixture(scope="module", name="found")
def found_fixture():
  return subprograms.run(PROGRAM, "2", ",".join(["plain", *NAMES]))


def test_a_plain_program_places_replicates_plans_and_trains(found):
  assert "error" not in found["plain"] and found["plain"]["replicas"][1]
  assert found["plain"]["weights"] and found["plain"]["plan"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_changes_no_result_and_is_left_as_it_was(name, found):
  own = {"plan", "weights"} if name in ANOTHER_STEP else set()
  assert "error" not in found[name]
  for key, value in found[name].items():
    assert key in own or value == found["plain"][key], key
