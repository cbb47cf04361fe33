"""Keras models trained beside their replicas, of both versions, each in a process of its own."""

import functools
import pathlib

import keras_constructs
import pytest

import subprograms

FOLDER = pathlib.Path(__file__).parent
# With Keras 2 beside Keras 3: layers and losses whose graphs differ most.
LEGACY = ("dropout_without_a_seed", "masked_loss", "metrics", "masked_sequences", "convolutions",
          "embedding_with_adagrad")
OWN = ("batch_normalization", "masked_loss", "convolutions")
_MIRRORED = f"{keras_constructs.MIRRORED}/3"
REPLICAS = (2, pytest.param(3, marks=pytest.mark.heavy))


@functools.cache
def compared(version, replicas):
  names = LEGACY if version == 2 and subprograms.HAS_KERAS_3 else keras_constructs.CASES
  return subprograms.run_with_keras(
      str(version), FOLDER / "keras_constructs.py", *(f"{name}/{replicas}" for name in names),
      *([_MIRRORED] if (version, replicas) == (2, 2) else []))


@pytest.mark.parametrize("name", keras_constructs.CASES)
@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("version", (2, 3))
def test_replicas_of_a_model_do_the_step_of_the_whole_batch(version, replicas, name):
  found = compared(version, replicas)[f"{name}/{replicas}"]
  assert "error" not in found, found["error"]
  assert found["checked"] and found["variables"] >= 5, found["text"]
  assert found["difference"] < 1e-4
  assert bool(found["own"]) == (name in OWN)
  assert found["apart"] < 1e-5 or name in (*OWN, "dropout_without_a_seed")


def test_batch_normalization_is_that_of_mirrored_strategy():
  found = compared(2, 2)[_MIRRORED]
  assert "error" not in found and found["apart"] < 1e-5, found
