"""`Runtime`: the devices that sessions run on; `workers` has three kinds."""

from __future__ import annotations

from typing import Optional, Tuple, TypeVar

_Self = TypeVar("_Self", bound="Runtime")


class Runtime:
  """Devices that sessions run on: local or remote worker processes, or this process.

  Attributes:
    num_cpus: CPU devices of one process.
  """

  num_cpus = 1

  @property
  def target(self) -> str:
    """Returns the address that sessions connect to; "" for this process."""
    return ""

  @property
  def devices(self) -> Tuple[str, ...]:
    """Returns the canonical names of the devices, once started."""
    raise NotImplementedError

  @property
  def cores(self) -> Tuple[Tuple[int, ...], ...]:
    """Returns the cores that each worker is bound to, where that is known."""
    return ()

  @property
  def closed(self) -> bool:
    """Returns whether the runtime has to be restarted before it serves."""
    return False

  def __enter__(self: _Self) -> _Self:
    self.start()
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def start(self) -> None:
    """Makes the devices available.

    Raises:
      MeasurementError: they do not answer.
    """
    raise NotImplementedError

  def restart(self) -> None:
    """Makes the devices available again after a failure.

    Raises:
      MeasurementError: they do not answer.
    """
    self.start()

  def close(self) -> None:
    """Ends the devices that `start` made available."""

  def lost(self) -> Optional[str]:
    """Returns a sentence about a worker that is gone; None where only a session would show it."""
    return None
