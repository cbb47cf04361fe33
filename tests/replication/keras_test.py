"""Replicas of Keras training steps, of both versions, each in a process of its own."""

import functools
import pathlib

import pytest

import subprograms

FOLDER = pathlib.Path(__file__).parent
CASES = ("adam/embedding/3", "adagrad/embedding/2", "sgd+clip/lstm/2", "rmsprop/dense/4")
MIRRORED = (2, 3)


@functools.cache  # TensorFlow takes longer to start than a case takes
def differences(program, *arguments):
  """What a program of this folder prints."""
  return subprograms.run(FOLDER / program, *arguments, without=("TF_USE_LEGACY_KERAS",))


@functools.cache
def steps(version):
  """What `keras_step.py` prints with a Keras."""
  return subprograms.run_with_keras(str(version), FOLDER / "keras_step.py", *CASES)


@pytest.mark.parametrize("version", (2, 3))
@pytest.mark.parametrize("case", CASES)
def test_a_step_of_keras_is_that_of_the_global_batch(version, case):
  assert steps(version)[case] < 1e-10


@pytest.mark.parametrize("replicas", MIRRORED)
def test_batch_normalization_is_that_of_mirrored_strategy(replicas):
  # Collective groups are of a process: one of another size needs another one.
  assert differences("mirrored_step.py", str(replicas))[str(replicas)] < 1e-5
