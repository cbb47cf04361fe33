"""Runs programs of the tests in processes of their own and reads the JSON that they print."""

import gc
import json
import os
import pathlib
import signal
import subprocess
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# With the collector as tests/conftest.py has set it here.
_START = (f"import gc, runpy, sys; gc.set_threshold(*{gc.get_threshold()}); "
          "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')")


def run(program, *arguments, timeout=3600, without=(), **variables):
  """What a program prints; fails with the end of its messages.

  Args:
    program: its path.
    *arguments: of its command line.
    timeout: in seconds: of what hangs, not of what a busy machine takes long for.
    without: environment variables that it is not to see.
    **variables: environment variables it is to see besides.
  """
  path = os.pathsep.join([
      str(_ROOT), str(_ROOT / "tests"), str(pathlib.Path(program).parent),
      *filter(None, [os.environ.get("PYTHONPATH")])])
  environment = {**os.environ, "PYTHONPATH": path, **variables}
  for name in without:
    environment.pop(name, None)
  done = subprocess.run(
      [sys.executable, "-X", "faulthandler", "-c", _START, str(program), *arguments],
      capture_output=True, text=True, timeout=timeout, env=environment, check=False)
  # A process that a signal ended (the kernel's, when memory runs out) says nothing itself.
  ended = signal.Signals(-done.returncode).name if done.returncode < 0 else done.returncode
  assert done.returncode == 0, f"{program} ended with {ended}:\n{done.stderr[-3000:]}"
  return json.loads(done.stdout.splitlines()[-1])
