"""Keras models trained beside their replicas, of both versions, each in a process of its own."""

import functools
import pathlib
import re

import pytest

import subprograms

PROGRAM = pathlib.Path(__file__).parent / "keras_constructs.py"
NAMES = re.findall(r"@case\ndef (\w+)", PROGRAM.read_text(encoding="utf-8"))
# With Keras 2 beside Keras 3: layers and losses whose graphs differ most.
LEGACY = ("dropout_without_a_seed", "masked_loss", "metrics", "masked_sequences", "convolutions")
OWN = ("batch_normalization", "masked_loss", "convolutions")
REPLICAS = (2, pytest.param(3, marks=pytest.mark.heavy))


@functools.cache
def compared(version, replicas):
  names = LEGACY if version == 2 and subprograms.HAS_KERAS_3 else NAMES
  return subprograms.run_with_keras(
      str(version), PROGRAM, *(f"{name}/{replicas}" for name in names))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("version", (2, 3))
def test_replicas_of_a_model_do_the_step_of_the_whole_batch(version, replicas, name):
  found = compared(version, replicas)[f"{name}/{replicas}"]
  assert "error" not in found, found["error"]
  assert found["checked"] and found["variables"] >= 5, found["text"]
  assert found["difference"] < 1e-4
  assert bool(found["own"]) == (name in OWN)
