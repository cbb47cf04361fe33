"""`Executor`: runs calls beside this one, in this process; `ray_executor.OnRay` runs them on Ray.

There are three kinds of work:

  tasks     calls that know nothing of one another, such as the runs of an evaluation
  together  calls that all run at one time, because they wait for one another: islands of a search
  workers   calls of what each worker makes once and keeps, such as a network that collects

A call may run twice, where a process or its node died after the first time. So it returns what it
found and writes nothing. What it is given travels to other processes: `share` it where it is big or
given to many.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
from typing import Any, Callable, Deque, Hashable, Iterator, Mapping, Optional, Sequence, Set, Tuple

from placeto_tf.errors import SetupError
from placeto_tf.simulation.simulator import num_cores


class Lost(SetupError):
  """What ran elsewhere is gone, and was so whenever it was tried again."""


class Shared:
  """A value that calls are given."""

  def __init__(self, value: object):
    self._value = value

  def get(self) -> Any:
    """The value, where it is needed."""
    return self._value


class Calls:
  """Calls of one function, made when their results are asked for.

  Those that have not ended are given up on leaving the context.
  """

  def __init__(self, function: Callable):
    self._function = function
    self._calls: Deque[Tuple[Hashable, Tuple[object, ...]]] = collections.deque()

  def __enter__(self) -> Calls:
    return self

  def __exit__(self, *exception: object) -> None:
    self._calls.clear()

  @property
  def pending(self) -> bool:
    """Whether results have not been given out yet."""
    return bool(self._calls)

  def submit(self, key: Hashable, name: str, *arguments: object) -> None:
    """Adds a call; who watches sees it under this name."""
    self._calls.append((key, arguments))

  def done(self, seconds: Optional[float] = None) -> Iterator[Tuple[Any, Any]]:
    """(key, result) of calls as they end: of all, or of those that end within these seconds.

    Raises:
      PlacetoError: what a call raised, or that it was lost.
    """
    while self._calls:
      key, arguments = self._calls.popleft()
      yield key, self._function(*arguments)


class _Threads(Calls):
  """Calls on a thread each; leaving waits for all, so something else must tell them to end."""

  def __init__(self, function: Callable, count: int):
    super().__init__(function)
    self._threads = concurrent.futures.ThreadPoolExecutor(count)
    self._running: Set[concurrent.futures.Future] = set()

  def __exit__(self, *exception: object) -> None:
    self._threads.shutdown(wait=True)

  @property
  def pending(self) -> bool:
    return bool(self._running)

  def submit(self, key: Hashable, name: str, *arguments: object) -> None:
    self._running.add(self._threads.submit(lambda: (key, self._function(*arguments))))

  def done(self, seconds: Optional[float] = None) -> Iterator[Tuple[Any, Any]]:
    while self._running:
      ended, self._running = concurrent.futures.wait(
          self._running, seconds, concurrent.futures.FIRST_COMPLETED)
      for future in ended:
        yield future.result()
      if seconds is not None:
        return


class Workers:
  """One worker in this process, which works when it is asked for a result.

  Elsewhere there may be several, and calls go to whichever is free. They end on leaving the
  context.
  """

  def __init__(self, held: Callable):
    self._calls = Calls(held)

  def __enter__(self) -> Workers:
    return self

  def __exit__(self, *exception: object) -> None:
    """Nothing runs once nobody asks."""

  def submit(self, name: str, *arguments: object) -> None:
    """Adds a call; who watches sees it under this name."""
    self._calls.submit(None, name, *arguments)

  def next(self) -> Any:
    """The result of the first call whose result was not given out yet, once it is there."""
    return next(self._calls.done())[1]


class Executor:
  """Runs calls in this process: islands on threads, all else when its result is asked for.

  Attributes:
    cores: that it runs calls on.
    beside: whether calls run beside this process and one another, each on a core of its own.
    watch_seconds: how often what runs together is looked at.
  """

  beside = False
  watch_seconds = 0.1

  def __init__(self, cores: Optional[int] = None):
    """Args: cores: by default those of this machine."""
    self.cores = cores or num_cores()

  def share(self, value: object) -> Shared:
    """The value in a form that travels once to each process."""
    return Shared(value)

  def share_all(self, values: Sequence[object]) -> Sequence[Any]:
    """The same of several values, each of which travels when it is first used."""
    return values

  def tasks(self, function: Callable, *, cpus: float = 1.0) -> Calls:
    """For calls that know nothing of one another. Args: cpus: that each takes."""
    return Calls(function)

  def together(self, function: Callable, count: int) -> Calls:
    """For `count` calls that all run at one time, also where there are fewer cores."""
    return _Threads(function, count)

  @contextlib.contextmanager
  def meeting(self, count: int, make: Callable, *arguments: object) -> Iterator[Any]:
    """What `make` returns, whose methods `count` calls may use at one time, wherever they run."""
    yield make(*arguments)

  def workers(
      self, name: str, count: int, make: Callable[..., Callable], *arguments: object,
      environment: Mapping[str, str]) -> Workers:
    """Workers that each hold what `make` returns, to be called; in this process one.

    Args:
      name: what who watches sees of them.
      count: how many.
      make: called in each with its number, from 0 on, and the arguments.
      *arguments: for `make`.
      environment: variables of their processes, where they have some of their own.
    """
    return Workers(make(0, *arguments))
