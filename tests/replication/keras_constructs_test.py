"""Keras models trained beside their replicas, of both versions, each in a process of its own."""

import functools
import importlib.util
import pathlib
import re

import pytest

import subprograms

PROGRAM = pathlib.Path(__file__).parent / "keras_constructs.py"
NAMES = re.findall(r"@case\ndef (\w+)", PROGRAM.read_text(encoding="utf-8"))
OWN = ("batch_normalization", "masked_loss", "convolutions")
REPLICAS = (2, pytest.param(3, marks=pytest.mark.heavy))


@functools.cache
def compared(version, replicas):
  import tensorflow as tf

  old = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16)
  if version == 3 and (old or importlib.util.find_spec("keras") is None):
    pytest.skip("Keras 3 is not installed")
  return subprograms.run(PROGRAM, str(version), *(f"{name}/{replicas}" for name in NAMES),
                         without=("TF_USE_LEGACY_KERAS",))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("version", (2, 3))
def test_replicas_of_a_model_do_the_step_of_the_whole_batch(version, replicas, name):
  found = compared(version, replicas)[f"{name}/{replicas}"]
  assert "error" not in found, found["error"]
  assert found["checked"] and found["variables"] >= 5, found["text"]
  assert found["difference"] < 1e-4
  assert bool(found["own"]) == (name in OWN)
