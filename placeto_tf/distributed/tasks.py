"""Calls of a function as Ray tasks, whose results come as they are done."""

from __future__ import annotations

import contextlib
import functools
import pickle
from typing import Any, Callable, Dict, Generic, Iterable, Iterator, Sequence, Tuple, TypeVar

from placeto_tf.errors import PlacetoError, SetupError

Key = TypeVar("Key")
RETRIES = 3  # after a node or a process died
_KEPT = 256  # shared values that a process has at a time


class Tasks(Generic[Key]):
  """Tasks of one function; those that are not done yet are cancelled on leaving the context.

  With a task whose node dies Ray begins again elsewhere, `RETRIES` times.
  """

  def __init__(self, ray: Any, function: Callable[..., Any], *, cpus: float = 1.0):
    """Args: cpus: that each takes."""
    self._ray = ray
    self._remote = remote(ray, function, cpus)
    self._pending: Dict[Any, Key] = {}

  def __enter__(self) -> Tasks[Key]:
    return self

  def __exit__(self, *exception: object) -> None:
    for reference in self._pending:
      self._ray.cancel(reference, force=True)

  def submit(self, key: Key, name: str, *args: Any) -> None:
    """Adds a task; Ray's dashboard shows it under this name."""
    self._pending[self._remote.options(name=name).remote(*args)] = key

  def done(self, *, wait: bool) -> Iterator[Tuple[Key, Any]]:
    """(key, result) of tasks as they are done: of all, or of those that are done by now.

    Raises:
      PlacetoError: what a task raised, or its node died too often.
    """
    while self._pending:
      ended, _ = self._ray.wait(list(self._pending), timeout=1.0 if wait else 0)
      if not ended and not wait:
        return
      for reference in ended:
        key = self._pending.pop(reference)
        yield key, fetch(self._ray, reference)


def remote(ray: Any, function: Callable[..., Any], cpus: float) -> Any:
  """The function as Ray's, spread over nodes, and run again where a node dies."""
  return ray.remote(
      num_cpus=cpus, max_retries=RETRIES, scheduling_strategy="SPREAD")(function)


def fetch(ray: Any, reference: Any) -> Any:
  """A task's result; raises what it raised, as it would have here."""
  with raised_here(ray):
    return ray.get(reference)


@contextlib.contextmanager
def raised_here(ray: Any) -> Iterator[None]:
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
    raise SetupError(
        f"a task was lost {RETRIES + 1} times ({type(error).__name__}); see Ray's logs, and "
        "whether its nodes have memory enough") from error


def share(ray: Any, value: Any) -> Any:
  """A reference to a value in the object store, for `unshare` in tasks.

  As bytes: arrays that Ray itself restores are read-only.
  """
  return ray.put(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def unshare(content: bytes) -> Any:
  """What was shared."""
  return pickle.loads(content)


class Shared(Sequence[Any]):
  """Values in the object store, each fetched where and when it is asked for.

  A process keeps the last ones it used, so that it need not have room for all.
  """

  def __init__(self, ray: Any, values: Iterable[Any]):
    self.__setstate__([share(ray, value) for value in values])

  def __getstate__(self) -> Any:
    return self._references

  def __setstate__(self, references: Any) -> None:
    self._references = references
    self._get = functools.lru_cache(maxsize=_KEPT)(self._fetch)

  def __len__(self) -> int:
    return len(self._references)

  def __getitem__(self, index: Any) -> Any:
    return self._get(index)

  def _fetch(self, index: int) -> Any:
    from placeto_tf.distributed.session import import_ray

    return unshare(fetch(import_ray(), self._references[index]))
