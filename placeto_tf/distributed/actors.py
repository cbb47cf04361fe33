"""Actors that each hold an object made alike; calls of it go to whichever is free."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from placeto_tf.distributed import tasks

# Each works on one core and asks for half of it: those of a node that died fit on the others.
MOST_A_CORE = 2


class _Holder:
  """The actor: an object, and calls of it by their number."""

  def __init__(self, name: str, number: int):
    self._name, self._number = name, number
    self._held: Optional[Callable[..., Any]] = None

  def __repr__(self) -> str:
    """What Ray's dashboard shows."""
    return f"{self._name} {self._number}"

  def call(self, number: int, made_of: Sequence[Any], *arguments: Any) -> Tuple[int, Any]:
    """The number, and the result. Args: made_of: one reference, to `make` and its arguments."""
    if self._held is None:
      from placeto_tf.distributed.session import import_ray

      make, of = import_ray().get(made_of[0])
      self._held = make(self._number, *of)
    return number, self._held(*arguments)


class Actors:
  """Calls run by Ray's actors; they end on leaving the context.

  Ray starts an actor whose process or node dies again, elsewhere if need be, and repeats its call,
  `tasks.RETRIES` times. So a call may run twice: it must depend on its arguments only.
  """

  def __init__(
      self, ray: Any, name: str, count: int, make: Callable[..., Callable[..., Any]],
      *arguments: Any, environment: Mapping[str, str]):
    """Starts them, and does not wait until they have started.

    Args:
      ray: connected.
      name: what Ray's dashboard calls them, each with its number.
      count: how many.
      make: called in each with its number, from 0 on, and the arguments; returns what it holds.
      *arguments: for `make`; Ray resolves no references in them. They are sent with calls, for
        Ray does not keep what a constructor is given for when it starts an actor again.
      environment: variables of their processes.
    """
    from ray.util.actor_pool import ActorPool

    self._ray = ray
    remote = ray.remote(
        num_cpus=1 / MOST_A_CORE, max_restarts=-1, max_task_retries=tasks.RETRIES,
        scheduling_strategy="SPREAD", runtime_env={"env_vars": dict(environment)})(_Holder)
    self._made_of = [ray.put((make, arguments))]
    self._actors: List[Any] = [remote.remote(name, number) for number in range(count)]
    self._pool = ActorPool(self._actors)
    self._calls, self._given = 0, 0
    self._under_way: Dict[int, Any] = {}
    self._ended: Dict[int, Any] = {}

  def __enter__(self) -> Actors:
    return self

  def __exit__(self, *exception: object) -> None:
    with contextlib.suppress(Exception):  # Ray itself may have ended
      for reference in self._under_way.values():
        self._ray.cancel(reference)  # or Ray would try it again once its actor is gone
      for actor in self._actors:
        self._ray.kill(actor)

  def submit(self, name: str, *arguments: Any) -> None:
    """Adds a call; Ray's dashboard shows it under this name, and resolves references in it."""
    def begin(actor: Any, number: int) -> Any:
      reference = self._under_way[number] = actor.call.options(name=name).remote(
          number, self._made_of, *arguments)
      return reference

    self._pool.submit(begin, self._calls)
    self._calls += 1

  def next(self) -> Any:
    """The result of the first call whose result was not given out yet, once it is there.

    Raises:
      PlacetoError: what the call raised, or actors died too often.
    """
    while self._given not in self._ended:
      with tasks.raised_here(self._ray):
        number, result = self._pool.get_next_unordered()
      del self._under_way[number]
      self._ended[number] = result
    self._given += 1
    return self._ended.pop(self._given - 1)
