"""Replicas of Keras training steps, of both versions, each in a process of its own."""

import functools
import pathlib

import pytest

import subprograms

FOLDER = pathlib.Path(__file__).parent
CASES = ("adam/embedding/3", "adagrad/embedding/2", "sgd+clip/lstm/2", "rmsprop/dense/4")


@functools.cache
def steps(version):
  """What `keras_step.py` prints with a Keras."""
  return subprograms.run_with_keras(str(version), FOLDER / "keras_step.py", *CASES)


@pytest.mark.parametrize("version", (2, 3))
@pytest.mark.parametrize("case", CASES)
def test_a_step_of_keras_is_that_of_the_global_batch(version, case):
  assert steps(version)[case] < 1e-10


def test_batch_normalization_is_that_of_mirrored_strategy():
  found = subprograms.run(FOLDER / "mirrored_step.py", "3", without=("TF_USE_LEGACY_KERAS",))
  assert found["3"] < 1e-5
