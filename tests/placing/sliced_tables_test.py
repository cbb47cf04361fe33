"""Keras models whose tables train in slices: values and checkpoints as without placing."""

import pathlib

import pytest

import subprograms

_PROGRAM = pathlib.Path(__file__).parent / "sliced_tables.py"


@pytest.mark.parametrize("keras, optimizer, replicas, devices", [
    ("3", "adam", 1, (2, 5000)), ("3", "adagrad", 2, (2, 3000)), ("2", "adagrad", 1, (4, 900))])
def test_a_table_that_fits_nowhere_trains_in_slices(tmp_path, keras, optimizer, replicas, devices):
  found = subprograms.run_with_keras(keras, _PROGRAM, optimizer, replicas, *devices, tmp_path)
  assert found["strategy"] == f"{replicas} sliced" and "checked" in found["check"], found
  # Read by a callback, evaluated, saved, slots, and after `undo`; weights were written in between.
  for name in ("epochs", "evaluated", "saved", "slots", "undone"):
    assert found[name] < 1e-5, (name, found)
  assert found["how"][:2] == [[8, "placed"], [4, "alike"]]
