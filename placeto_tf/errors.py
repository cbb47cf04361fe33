"""The errors of the package: `PlacetoError` and its few children are what a caller catches.

Every message names what was found, what was expected and the remedy, in one sentence, because
the programs print it as it is and end with exit code 2.
"""

from __future__ import annotations

import os
from typing import List, Mapping, Sequence, Type

FOR_A_SHELL = "PLACETO_FOR_A_SHELL"  # in the environment of programs and their processes
# How lines of TensorFlow's messages begin that say where an op was made.
_PLACES = ("Graph execution error", "Detected at node", "Node:", "File ", "[[", "Original stack")


class PlacetoError(Exception):
  """Base of every error that placeto_tf raises on purpose."""


class GraphError(PlacetoError):
  """A graph that cannot be read or placed: bad file, unknown op, dangling input, cycle."""


class ReplicaMismatchError(GraphError):
  """Replicas that train something else than the graph they were made of."""


class ClusterError(PlacetoError):
  """A cluster string, JSON file or link table that is wrong."""


class CostError(PlacetoError):
  """Costs that are missing, negative, not a number, or do not belong to the graph."""


class PlacementError(PlacetoError):
  """A placement that does not fit its graph or cluster."""


class SetupError(PlacetoError):
  """Something the installation lacks, such as the legacy Keras."""


class MeasurementError(PlacetoError):
  """A measurement that failed: a lost worker, a time-out, a step out of memory."""


def listed(items: Sequence[str], most: int = 3) -> str:
  """The first of some items, for a sentence, and how many more there are."""
  more = f" and {len(items) - most:,} more" if len(items) > most else ""
  return ", ".join(items[:most]) + more


def counted(count: int, noun: str) -> str:
  """Returns a number with its noun, such as "1 op" or "2,000 ops".

  Args:
    count: the number.
    noun: in the singular, with a plural in s.

  Returns:
    The text.
  """
  return f"{count:,} {noun}{'s' * (count != 1)}"


def flags(name: str, value: object = ...) -> List[str]:
  """Returns an option as a shell writes it, such as ["--fetches=loss,train"].

  Args:
    name: of the option.
    value: in Python; `...` for any. Names with shapes have a flag each, True is a flag alone.
  """
  if isinstance(value, Mapping):
    return [f"--{name}={key}:{'x'.join(map(str, shape)) or 'scalar'}"
            for key, shape in value.items()]
  text = ",".join(value) if isinstance(value, list) else "..." if value is ... else (
      "no" if value is False else value)
  return [f"--{name}" if value is True else f"--{name}={text}"]


def option(name: str, value: object = ..., in_python: str = "") -> str:
  """Returns an option as the reader of a message gives it: to a program, or in Python.

  Args:
    name, value: as for `flags`.
    in_python: the text of an option that Python calls otherwise.
  """
  if os.environ.get(FOR_A_SHELL):
    return " ".join(flags(name, value))
  return in_python or f"{name}={'...' if value is ... else repr(value)}"


def one_line(error: BaseException, most: int = 200) -> str:
  """Returns the cause that an exception of somebody else's code names, in a line not too long.

  TensorFlow tells before and behind it where the op was made; that is left out.
  """
  said = getattr(error, "message", None) or getattr(error, "strerror", None) or error
  lines = [line.strip() for line in str(said).splitlines()]
  told = [line for line in lines if not line.startswith(_PLACES)] or lines
  return " ".join(" ".join(told).split())[:most] or type(error).__name__


def check_at_least(
    least: float, record: object, *names: str, error_type: Type[PlacetoError] = PlacementError
) -> None:
  """Raises an error if one of these fields of a record is below `least`, or NaN."""
  for name in names:
    value = getattr(record, name)
    if not value >= least:
      raise error_type(f"{name} is {value}; expected at least {least:g}")


def check_one_of(
    known: Sequence[object], record: object, *names: str,
    error_type: Type[PlacetoError] = PlacementError) -> None:
  """Raises an error if one of these fields of a record is none of the known values."""
  for name in names:
    value = getattr(record, name)
    if value not in known:
      raise error_type(f"{name} is {value!r:.60}; expected one of {', '.join(map(str, known))}")


def check_above_zero(
    record: object, *names: str, error_type: Type[PlacetoError] = PlacementError) -> None:
  """Raises an error if one of these fields of a record is not above 0."""
  for name in names:
    value = getattr(record, name)
    if not value > 0:
      raise error_type(f"{name} is {value}; expected more than 0")
