"""Connects to Ray, or starts it on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from typing import Any, Iterator

from placeto_tf.errors import SetupError
from placeto_tf.simulation.simulator import num_cores

LOCAL = "local"
# Ray gives the processes of a node 15 to 30 s to start. On a busy machine that can be too short;
# a second start is faster because the files have been read by then.
STARTS = 3
# What every process of the package that may import TensorFlow needs.
_ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def import_ray() -> Any:
  """The module. Raises: SetupError where it is not installed."""
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  # As future versions do: a task that asks for no accelerator still sees those that are there.
  os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
  try:
    import ray
  except ImportError:
    raise SetupError(
        "Ray is not installed, which --ray needs; pip install 'placeto_tf[ray]', or leave --ray "
        "out") from None
  return ray


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
  """The module `ray`, connected; what was started or connected is ended on leaving.

  A program that is connected already stays so.

  Args:
    address: "local", "auto", "host:port" or "ray://host:port".

  Raises:
    SetupError: Ray is not installed, or nothing answers at the address.
  """
  ray = import_ray()
  if ray.is_initialized():
    yield ray
    return
  with _signals_kept():
    for left in reversed(range(STARTS if address == LOCAL else 1)):
      try:
        _init(ray, address)
        break
      except Exception as error:  # Ray raises plain ones, for example when its start takes too long
        if not left:
          reason = str(error).strip().splitlines()[0] if str(error).strip() else "nothing answered"
          raise SetupError(
              f"Ray at {address!r} cannot be reached ({reason:.200}); start it with `ray start "
              "--head`, give the address of a running one, or --ray=local") from None
  try:
    yield ray
  finally:
    ray.shutdown()


def _init(ray: Any, address: str) -> None:
  """Connects, or starts Ray with a task for each core."""
  environment = {name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()}
  here = {"include_dashboard": False, "num_cpus": num_cores()} if address == LOCAL else {}
  ray.init(
      address, log_to_driver=False, logging_level=logging.ERROR,
      runtime_env={"env_vars": environment}, **here)
  # Errors of Ray's own processes would be printed between lines of progress; those that matter
  # here are raised as well.
  worker = sys.modules.get("ray._private.worker")
  if worker is not None:
    worker._worker_logs_enabled = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
  """Leaves the handler of SIGTERM as it is: Ray sets its own, which would skip tidying up."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  handler = signal.getsignal(signal.SIGTERM)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, handler)
