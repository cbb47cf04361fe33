"""Executors with the interface of `concurrent.futures`: this process, or the machines of Ray.

`InProcess` runs a call when it is submitted. `OnRay` makes the call a task of Ray. Ray queues the
task, sends it to a machine with a free core, and repeats it if a process or a machine dies. So a
call may run twice; it must only return its result and write nothing.

Ray's object store is read-only, and numba compiles again for read-only arrays. So values that many
calls need are sent as bytes, once to each process (`share`). Ray is imported inside functions, so
that everything else works without it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import logging
import os
import pickle
import signal
import threading
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

from placeto_tf.errors import PlacetoError, SetupError, option
from placeto_tf.simulation.simulator import num_cores

LOCAL = "local"
# Ray gives the processes of a node 15 to 30 s to start, which a busy machine may exceed. A second
# start is faster, because the files have been read by then.
_STARTS = 3
_RETRIES = 3  # number of repetitions of a call whose process or machine died
# Calls on one thread ask for half of a core, so that other machines can take the calls of a machine
# that died.
CALLS_A_CORE = 2
_ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
_KEPT = 64  # number of shared values that a process of Ray keeps
# Environment variables for all processes that may import TensorFlow.
_ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


@dataclasses.dataclass(frozen=True)
class Shared:
  """A value for calls of an executor; it is sent to each process once.

  Attributes:
    key: equal in all processes, so that results which are made from a value can be cached by it. On
      Ray it is the reference to the value's pickled bytes in the object store.
    value: the value itself in this process; None on Ray.
  """

  key: Any
  value: Any = dataclasses.field(default=None, compare=False)

  def get(self) -> Any:
    """Returns the value, in the process that needs it."""
    return self.value if isinstance(self.key, int) else _fetch(self.key)


@functools.lru_cache(maxsize=_KEPT)
def _fetch(reference: Any) -> Any:
  """Returns the value of a reference to pickled bytes in Ray's object store."""
  return pickle.loads(import_ray().get(reference))


class InProcess(concurrent.futures.Executor):
  """Runs each call when it is submitted, in the thread that submits it.

  Attributes:
    cores: number of cores of this machine.
    elsewhere: whether calls run in other processes, one core per call.
  """

  elsewhere = False

  def __init__(self) -> None:
    self.cores = num_cores()

  def submit(self, function: Callable, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future:
    """Runs a call at once; returns a future that is done. Ctrl-C is raised here."""
    future: concurrent.futures.Future = concurrent.futures.Future()
    try:
      # Errors go into the future; KeyboardInterrupt is no Exception and passes through.
      future.set_result(function(*args, **kwargs))
    except Exception as error:
      future.set_exception(error)
    return future

  def share(self, value: object) -> Shared:
    """Returns the value in the form for calls."""
    return Shared(id(value), value)

  def one_thread(self) -> InProcess:
    """Returns this executor: the threads of this process stay as the program has set them."""
    return self


class OnRay(concurrent.futures.Executor):
  """Makes each call a task of Ray.

  Attributes:
    cores: of all machines.
    elsewhere: whether calls run in other processes, each on a core of its own.
  """

  elsewhere = True

  def __init__(self, ray: ModuleType, cpus: float = 1.0,
               environment: Optional[Mapping[str, str]] = None):
    """Prepares tasks for a connected Ray.

    Args:
      ray: the module, connected.
      cpus: cores that each call takes.
      environment: environment variables of the processes that run calls, besides those of Ray.
    """
    self._ray, self._cpus = ray, cpus
    self._runtime_env = {"env_vars": dict(environment)} if environment else None
    self.cores = int(ray.cluster_resources().get("CPU", 0))
    self._remote: Dict[Callable, Any] = {}
    self._futures: List[concurrent.futures.Future] = []

  def submit(self, function: Callable, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future:
    """Submits a task; `result_of` gives its result."""
    # One remote function per function: Ray exports each only once.
    if function not in self._remote:
      self._remote[function] = self._ray.remote(
          num_cpus=self._cpus, max_retries=_RETRIES, scheduling_strategy="SPREAD",
          runtime_env=self._runtime_env)(function)
    self._futures.append(self._remote[function].remote(*args, **kwargs).future())
    return self._futures[-1]

  def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
    """Ends the tasks that still run, because nobody waits for their results.

    Args:
      wait, cancel_futures: ignored; every running task is cancelled.

    Returns:
      None.
    """
    for future in self._futures:
      if not future.done():
        self._ray.cancel(future.object_ref, force=True)  # type: ignore[attr-defined]
    self._futures.clear()

  def share(self, value: object) -> Shared:
    """Puts a value that cloudpickle can pickle into Ray's object store, in the form for calls."""
    # Bytes, so that arrays are writable where they are read.
    return Shared(self._ray.put(self._ray.cloudpickle.dumps(value)))

  def one_thread(self) -> OnRay:
    """Returns an executor whose calls use one thread of TensorFlow, on a share of a core each."""
    return OnRay(self._ray, 1 / CALLS_A_CORE, _ONE_THREAD)


Executor = Union[InProcess, OnRay]


def result_of(future: concurrent.futures.Future) -> Any:
  """Returns the result of a call; errors are those that the call raises in this process, too.

  Raises:
    PlacetoError: the call raised this error, or was lost too often.
  """
  try:
    return future.result()
  except Exception as error:
    # Ray wraps an error of the task; its cause is the original.
    cause = getattr(error, "cause", None)
    if isinstance(cause, PlacetoError):
      raise cause from None
    if type(error).__module__.startswith("ray.") and cause is None:
      raise SetupError(
          f"a call on Ray was lost {_RETRIES + 1} times ({type(error).__name__}); see Ray's logs, "
          "and whether its machines have memory enough") from error
    raise


def import_ray() -> ModuleType:
  """Imports and returns the module `ray`.

  Raises:
    SetupError: Ray is not installed.
  """
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  # As in future versions: a task that asks for no accelerator still sees all accelerators.
  os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
  try:
    import ray
  except ImportError:
    raise SetupError(
        f"Ray is not installed, which {option('ray')} needs; pip install 'placeto_tf[ray]', or "
        "leave it out") from None
  return ray


@contextlib.contextmanager
def executor_at(address: Optional[str], cpus: float = 1.0) -> Iterator[Executor]:
  """Yields the executor of an address; a Ray that it started or connected to ends on leaving.

  Args:
    address: "local" (the cores of this machine), "auto", "host:port" or "ray://host:port" of Ray;
      None is this process. An existing connection of the program is kept.
    cpus: number of cores that each call takes on Ray.

  Raises:
    SetupError: Ray is not installed, or nothing answers at the address.
  """
  if address is None:
    yield InProcess()
    return
  ray = import_ray()
  kept = ray.is_initialized()
  if not kept:
    _start(ray, address)
  try:
    with OnRay(ray, cpus) as executor:
      yield executor
  finally:
    if not kept:
      ray.shutdown()


def _start(ray: ModuleType, address: str) -> None:
  """Connects to Ray, or starts one with a task for each core of this machine."""
  # This process's own values win over the defaults.
  environment = {name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()}
  here = {"include_dashboard": False, "num_cpus": num_cores()} if address == LOCAL else {}
  handler = signal.getsignal(signal.SIGTERM)
  # A second try helps only if Ray is started here.
  for left in reversed(range(_STARTS if address == LOCAL else 1)):
    try:
      ray.init(address, log_to_driver=False, logging_level=logging.ERROR,
               runtime_env={"env_vars": environment}, **here)
      return
    except Exception as error:  # Ray raises plain ones, for example when its start takes too long
      if not left:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "nothing answered"
        raise SetupError(
            f"Ray at {address!r} cannot be reached ({reason:.200}); start it with `ray start "
            f"--head`, give the address of a running one, or {option('ray', 'local')}") from None
    finally:
      # Ray's own handlers would skip cleaning up; only the main thread may set handlers.
      if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
