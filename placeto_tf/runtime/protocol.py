"""The interface that measuring needs of a runtime; `workers` has three that implement it."""

from __future__ import annotations

from typing import Any, Optional, Protocol, Tuple


class Runtime(Protocol):
  """Devices that sessions run on: local or remote worker processes, or this process."""

  @property
  def target(self) -> str:
    """The address that sessions connect to; "" for this process."""

  @property
  def devices(self) -> Tuple[str, ...]:
    """Canonical names of the devices, once started."""

  @property
  def closed(self) -> bool:
    """Whether it has to be restarted before it serves."""

  def __enter__(self) -> Any:
    """Starts it."""

  def __exit__(self, *_: Any) -> None:
    """Closes it."""

  def start(self) -> None:
    """Makes the devices available.

    Raises:
      MeasurementError: they do not answer.
    """

  def restart(self) -> None:
    """Makes the devices available again after a failure.

    Raises:
      MeasurementError: they do not answer.
    """

  def close(self) -> None:
    """Ends what `start` started."""

  def lost(self) -> Optional[str]:
    """A sentence about a worker that is gone, or None."""
