"""Replicas of Keras training steps, of both versions, each in a process of its own."""

import functools
import importlib.util
import pathlib

import pytest

import subprograms

FOLDER = pathlib.Path(__file__).parent
CASES = ("adam/embedding/3", "sgd+clip/lstm/2", "rmsprop/dense/4")
MIRRORED = (2, 3)


@functools.cache  # TensorFlow takes longer to start than a case takes
def differences(program, *arguments):
  """What a program of this folder prints."""
  return subprograms.run(FOLDER / program, *arguments, without=("TF_USE_LEGACY_KERAS",))


def needs_keras(version):
  """Skips where the version is not installed; TensorFlow up to 2.15 brings Keras 2 itself."""
  import tensorflow as tf

  old = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16)
  if version == 3 and (old or importlib.util.find_spec("keras") is None):
    pytest.skip("Keras 3 is not installed")


@pytest.mark.parametrize("version", (2, 3))
@pytest.mark.parametrize("case", CASES)
def test_a_step_of_keras_is_that_of_the_global_batch(version, case):
  needs_keras(version)
  assert differences("keras_step.py", str(version), *CASES)[case] < 1e-10


@pytest.mark.parametrize("replicas", MIRRORED)
def test_batch_normalization_is_that_of_mirrored_strategy(replicas):
  # Collective groups are of a process: one of another size needs another one.
  assert differences("mirrored_step.py", str(replicas))[str(replicas)] < 1e-5
