"""Runs programs of the tests in processes of their own and reads the JSON that they print."""

import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

try:
  HAS_KERAS_3 = int(importlib.metadata.version("keras").partition(".")[0]) >= 3
except importlib.metadata.PackageNotFoundError:
  HAS_KERAS_3 = False
_ROOT = pathlib.Path(__file__).resolve().parents[2]
# With the collector as tests/conftest.py has set it here.
_START = (f"import gc, runpy, sys; gc.set_threshold(*{gc.get_threshold()}); "
          "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')")


def python(*arguments, cwd=None, timeout=3600, without=(), **variables):
  """Python with a command line, to its end; fails with the end of its messages.

  Args:
    *arguments: of its command line.
    cwd: the folder in which it runs.
    timeout: in seconds: of what hangs, not of what a busy machine takes long for.
    without: environment variables that it is not to see.
    **variables: environment variables it is to see besides.

  Returns:
    The `subprocess.CompletedProcess`.
  """
  environment = {**os.environ, **variables}
  for name in without:
    environment.pop(name, None)
  done = subprocess.run(
      [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
      cwd=cwd, env=environment, check=False)
  # A process that a signal ended (the kernel's, when memory runs out) says nothing itself.
  ended = signal.Signals(-done.returncode).name if done.returncode < 0 else done.returncode
  assert done.returncode == 0, f"ended with {ended}:\n{done.stderr[-3000:]}"
  return done


def run(program, *arguments, **options):
  """The JSON in the last line that a program prints; more are `python`'s options."""
  path = os.pathsep.join([
      str(_ROOT), str(_ROOT / "tests" / "support"), str(pathlib.Path(program).parent),
      *filter(None, [os.environ.get("PYTHONPATH")])])
  done = python("-X", "faulthandler", "-c", _START, program, *arguments,
                **{"PYTHONPATH": path, **options})
  return json.loads(done.stdout.splitlines()[-1])


class Found(dict):
  """What a program found, part by part; a test of a part that it was not asked for is skipped."""

  def __missing__(self, part):
    pytest.skip(f"{part} is tried with the other Keras")


def the_keras(version):
  """Imports Keras "2" or "3" in a process that has not imported TensorFlow yet."""
  name = "keras"
  if version == "2":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if importlib.util.find_spec("tf_keras"):  # up to TensorFlow 2.15 `keras` is the legacy one
      name = "tf_keras"
  keras = importlib.import_module(name)
  if not gc.get_freeze_count():
    # A million objects, which neither the collector nor `graphs.captures` looks through again.
    gc.freeze()
  return keras


def error_of(call):
  """The message with which a call fails, or ""."""
  try:
    call()
  except Exception as error:
    return str(error)
  return ""


def decided_trial(ratio):
  """A trial of a placed step, which takes `ratio` of the other's time on the trial's clock."""
  from placeto_tf.runtime.step_trial import in_turns

  def trial(before, after):
    now = [0.0]

    def of(run, seconds):
      def timed():
        run()
        now[0] += seconds
      return timed

    return in_turns(of(before, 1.0), of(after, ratio), clock=lambda: now[0])

  return trial


def run_with_keras(version, program, *arguments, **options):
  """`Found` of a program whose first argument is the Keras, "2" or "3"; skips where that lacks."""
  if version == "3" and not HAS_KERAS_3:
    pytest.skip("Keras 3 is not installed")
  return Found(run(program, version, *arguments, **options, without=(
      ("TF_USE_LEGACY_KERAS",) if version == "3" else ())))
