"""`OnRay`: an `Executor` whose calls are tasks and actors of Ray, and the connection to it.

Scheduling, queues, transport and retries are Ray's. What is in its object store is read-only, and
numba compiles anew for read-only arrays. So values travel as bytes that are unpickled where they
are used. Ray is imported inside functions: without the extra everything else works.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import signal
import sys
import threading
import typing
from types import ModuleType
from typing import Any, Callable, Dict, Hashable, Iterator, List, Mapping, Optional, Sequence, Tuple

from placeto_tf.errors import PlacetoError, SetupError
from placeto_tf.problem.executor import Calls, Executor, Lost, Shared, Workers
from placeto_tf.simulation.simulator import num_cores

if typing.TYPE_CHECKING:
  from ray import ObjectRef
  from ray.actor import ActorHandle

LOCAL = "local"
# Ray gives the processes of a node 15 to 30 s to start. On a busy machine that can be too short;
# a second start is faster because the files have been read by then.
STARTS = 3
RETRIES = 3  # after a node or a process died
# A worker works on one core and asks for half of it: those of a node that died fit on the others.
MOST_WORKERS_A_CORE = 2
GRACE_SECONDS = 5.0  # for calls that ran together to end by themselves, before they are ended
_KEPT = 256  # shared values that a process has at a time
# What every process of the package that may import TensorFlow needs.
_ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def import_ray() -> ModuleType:
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
def connected(address: str) -> Iterator[ModuleType]:
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


def _init(ray: ModuleType, address: str) -> None:
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


@contextlib.contextmanager
def _raised_here(ray: ModuleType) -> Iterator[None]:
  """Has errors of tasks and actors be those that they would be here.

  Raises:
    PlacetoError: what a task raised, or it was lost too often.
  """
  try:
    yield
  except ray.exceptions.RayTaskError as error:
    if isinstance(error.cause, PlacetoError):
      raise error.cause from None
    raise
  except ray.exceptions.RayError as error:
    raise Lost(
        f"a task was lost {RETRIES + 1} times ({type(error).__name__}); see Ray's logs, and "
        "whether its nodes have memory enough") from error


class _Shared(Shared, Sequence[Any]):
  """Values in the object store, each fetched where and when it is asked for.

  A process keeps the last ones it used, so that it need not have room for all.
  """

  def __init__(self, ray: ModuleType, values: Sequence[object]):
    self.__setstate__([ray.put(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
                       for value in values])

  def __getstate__(self) -> List[ObjectRef]:
    return self._references

  def __setstate__(self, references: List[ObjectRef]) -> None:
    self._references = references
    self._fetched = functools.lru_cache(maxsize=_KEPT)(self._fetch)

  def __len__(self) -> int:
    return len(self._references)

  def __getitem__(self, index: Any) -> Any:
    return self._fetched(index)

  def get(self) -> Any:
    """The first value, which may be the only one."""
    return self[0]

  def _fetch(self, index: int) -> Any:
    ray = import_ray()
    with _raised_here(ray):
      return pickle.loads(ray.get(self._references[index]))


class _Tasks(Calls):
  """Tasks of one function; with one whose node dies Ray begins again elsewhere, `RETRIES` times."""

  def __init__(
      self, ray: ModuleType, function: Callable, cpus: float, grace_seconds: float = 0.0):
    self._ray, self._grace_seconds = ray, grace_seconds
    self._remote = ray.remote(
        num_cpus=cpus, max_retries=RETRIES, scheduling_strategy="SPREAD")(function)
    self._running: Dict[ObjectRef, Hashable] = {}

  def __exit__(self, *exception: object) -> None:
    left = list(self._running)
    if left and self._grace_seconds:
      _, left = self._ray.wait(left, num_returns=len(left), timeout=self._grace_seconds)
    for reference in left:
      self._ray.cancel(reference, force=True)

  @property
  def pending(self) -> bool:
    return bool(self._running)

  def submit(self, key: Hashable, name: str, *arguments: object) -> None:
    self._running[self._remote.options(name=name).remote(*arguments)] = key

  def done(self, seconds: Optional[float] = None) -> Iterator[Tuple[Any, Any]]:
    while self._running:
      ended, _ = self._ray.wait(
          list(self._running), timeout=1.0 if seconds is None else seconds)
      if seconds is not None:
        if not ended:
          return
        seconds = 0.0
      for reference in ended:
        key = self._running.pop(reference)
        with _raised_here(self._ray):
          found = self._ray.get(reference)
        yield key, found


class _Meeting:
  """An object that is an actor, whose methods are called wherever this travels to."""

  def __init__(self, actor: ActorHandle):
    self._actor = actor

  def __getattr__(self, name: str) -> Callable:
    if name.startswith("_"):
      raise AttributeError(name)

    def call(*arguments: object) -> Any:
      ray = import_ray()
      with _raised_here(ray):
        return ray.get(self._actor.call.remote(name, *arguments))

    return call


class _Held:
  """The actor of a meeting: has the methods of an object."""

  def __init__(self, make: Callable, arguments: Tuple[object, ...]):
    self._held = make(*arguments)

  def call(self, name: str, *arguments: object) -> Any:
    return getattr(self._held, name)(*arguments)


class _Worker:
  """The actor of a worker: what was made, and calls of it by their number."""

  def __init__(self, name: str, number: int):
    self._name, self._number = name, number
    self._held: Optional[Callable] = None

  def __repr__(self) -> str:
    """What Ray's dashboard shows."""
    return f"{self._name} {self._number}"

  def call(self, number: int, made_of: Sequence[ObjectRef], *arguments: object) -> Tuple[int, Any]:
    """The number, and the result. Args: made_of: one reference, to `make` and its arguments."""
    if self._held is None:
      make, of = import_ray().get(made_of[0])
      self._held = make(self._number, *of)
    return number, self._held(*arguments)


class _Workers(Workers):
  """Actors; one whose process or node dies is started again, and its call repeated.

  What they are made of is sent with calls: Ray does not keep what a constructor is given for when
  it starts an actor again.
  """

  def __init__(
      self, ray: ModuleType, name: str, count: int, make: Callable[..., Callable],
      arguments: Tuple[object, ...], environment: Mapping[str, str]):
    from ray.util.actor_pool import ActorPool

    self._ray = ray
    remote = ray.remote(
        num_cpus=1 / MOST_WORKERS_A_CORE, max_restarts=-1, max_task_retries=RETRIES,
        scheduling_strategy="SPREAD", runtime_env={"env_vars": dict(environment)})(_Worker)
    self._made_of = [ray.put((make, arguments))]
    self._actors: List[ActorHandle] = [remote.remote(name, number) for number in range(count)]
    self._pool = ActorPool(self._actors)
    self._submitted, self._given = 0, 0
    self._under_way: Dict[int, ObjectRef] = {}
    self._ended: Dict[int, Any] = {}

  def __exit__(self, *exception: object) -> None:
    with contextlib.suppress(Exception):  # Ray itself may have ended
      for reference in self._under_way.values():
        self._ray.cancel(reference)  # or Ray would try it again once its actor is gone
      for actor in self._actors:
        self._ray.kill(actor)

  def submit(self, name: str, *arguments: object) -> None:
    def begin(actor: ActorHandle, number: int) -> ObjectRef:
      reference = self._under_way[number] = actor.call.options(name=name).remote(
          number, self._made_of, *arguments)
      return reference

    self._pool.submit(begin, self._submitted)
    self._submitted += 1

  def next(self) -> Any:
    while self._given not in self._ended:
      with _raised_here(self._ray):
        number, result = self._pool.get_next_unordered()
      del self._under_way[number]
      self._ended[number] = result
    self._given += 1
    return self._ended.pop(self._given - 1)


class OnRay(Executor):
  """Runs calls wherever Ray has a core for them."""

  beside = True
  watch_seconds = 1.0

  def __init__(self, ray: ModuleType):
    """Args: ray: the module, connected."""
    self._ray = ray
    self.cores = int(ray.cluster_resources().get("CPU", 0))

  def share(self, value: object) -> _Shared:
    """See `Executor`."""
    return _Shared(self._ray, [value])

  def share_all(self, values: Sequence[object]) -> _Shared:
    """See `Executor`."""
    return _Shared(self._ray, values)

  def tasks(self, function: Callable, *, cpus: float = 1.0) -> _Tasks:
    """See `Executor`."""
    return _Tasks(self._ray, function, cpus)

  def together(self, function: Callable, count: int) -> _Tasks:
    """See `Executor`; each asks for as much of a core as leaves room for all."""
    cpus = min(1.0, int(1000 * max(1, self.cores) / count) / 1000)
    return _Tasks(self._ray, function, cpus, GRACE_SECONDS)

  @contextlib.contextmanager
  def meeting(
      self, count: int, make: Callable, *arguments: object) -> Iterator[_Meeting]:
    """See `Executor`; it is on the node of this process, which ends with it anyway."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=True)
    actor = self._ray.remote(_Held).options(
        num_cpus=0, max_concurrency=count + 2, scheduling_strategy=here).remote(
            make, arguments)
    try:
      yield _Meeting(actor)
    finally:
      with contextlib.suppress(Exception):  # Ray itself may have ended
        self._ray.kill(actor)

  def workers(
      self, name: str, count: int, make: Callable[..., Callable], *arguments: object,
      environment: Mapping[str, str]) -> _Workers:
    """See `Executor`."""
    return _Workers(self._ray, name, count, make, arguments, environment)


@contextlib.contextmanager
def executor_at(ray: Optional[str]) -> Iterator[Executor]:
  """Runs calls on the Ray of an address, see `connected`; None is in this process.

  Raises:
    SetupError: Ray is not installed, or nothing answers at the address.
  """
  if ray is None:
    yield Executor()
    return
  with connected(ray) as module:
    yield OnRay(module)
