"""Replicas of Keras training steps, of both versions, each in a process of its own."""

import importlib.util
import os
import subprocess
import sys

import pytest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))


def difference(program, *arguments):
  """What a program of this folder prints last."""
  environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
  done = subprocess.run(
      [sys.executable, os.path.join(FOLDER, program), *map(str, arguments)],
      env={**environment, "PYTHONPATH": ROOT}, capture_output=True, text=True, timeout=300,
      check=False)
  assert not done.returncode, done.stderr[-3000:]
  return float(done.stdout.split()[-1])


def needs_keras(version):
  """Skips where the version is not installed; TensorFlow up to 2.15 brings Keras 2 itself."""
  import tensorflow as tf

  old = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16)
  if version == 3 and (old or importlib.util.find_spec("keras") is None):
    pytest.skip("Keras 3 is not installed")


@pytest.mark.parametrize("version, optimizer, model, replicas", (
    (2, "adam", "embedding", 3), (2, "sgd+clip", "lstm", 2), (2, "rmsprop", "dense", 4),
    (3, "adam", "embedding", 3), (3, "sgd+clip", "lstm", 2), (3, "rmsprop", "dense", 4)))
def test_a_step_of_keras_is_that_of_the_global_batch(version, optimizer, model, replicas):
  needs_keras(version)
  assert difference("keras_step.py", version, optimizer, model, replicas) < 1e-10


@pytest.mark.parametrize("replicas", (2, 3))
def test_batch_normalization_is_that_of_mirrored_strategy(replicas):
  assert difference("mirrored_step.py", replicas) < 1e-5
