"""Keras models that train slices or copies: values and checkpoints as without placing."""

import pathlib

import pytest

import subprograms

_PROGRAM = pathlib.Path(__file__).parent / "parted_variables.py"


@pytest.mark.parametrize("keras, optimizer, strategy, devices, option", [
    ("3", "adam", "1 sliced", (2, 5000), ("slices", 2)),
    ("3", "adagrad", "2 sliced", (2, 3000), ("slices", 2)),
    ("2", "adagrad", "1 sliced", (4, 900), ("slices", 2)),
    ("3", "adam", "2 mirrored", (2, 30000), ("mirrored_variables", 1)),
    ("2", "sgd", "4 mirrored", (4, 30000), ("mirrored_variables", 1))])
def test_variables_train_in_slices_and_copies(
    tmp_path, keras, optimizer, strategy, devices, option):
  replicas = int(strategy.partition(" ")[0])
  found = subprograms.run_with_keras(
      keras, _PROGRAM, optimizer, replicas, *devices, tmp_path, *option)
  assert found["strategy"] == strategy and "checked" in found["check"], found
  # Read by a callback, evaluated, saved, slots, and after `undo`; weights were written in between.
  for name in ("epochs", "evaluated", "saved", "slots", "undone"):
    assert found[name] < 1e-5, (name, found)
  assert found["apart"] == 0 and not any(found["written"])
  assert found["how"][:2] == [[8, "placed", replicas], [4, "alike", replicas]]
