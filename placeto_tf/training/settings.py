"""Lists fields of nested frozen dataclasses as text, and sets them by `name=value`.

Names in nested dataclasses are dotted (`network.rounds`); the last parts are enough if only one
field has them (`rounds`). The field's annotation decides how a value is parsed:

  bool           true or false
  Optional[X]    none, or as X
  Tuple[X, ...]  comma separated, empty for none
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, TypeVar, Union

from placeto_tf.errors import PlacetoError

T = TypeVar("T")


# Type of a field -> its reader of text, and the expected form.
_READERS: Dict[Any, Tuple[Callable[[str], Any], str]] = {
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    int: (int, "a whole number"), float: (float, "a number"), str: (str, "text")}


def fields(config: Any, prefix: str = "") -> Dict[str, Tuple[Any, Any]]:
  """Lists the fields of nested dataclasses.

  Args:
    config: a dataclass.
    prefix: of the names, with its dot.

  Returns:
    Dotted name -> (annotation, value), in order, for all fields that are no dataclasses.
  """
  found: Dict[str, Tuple[Any, Any]] = {}
  # Resolves annotations that are text (`from __future__ import annotations`).
  for name, annotation in typing.get_type_hints(type(config)).items():
    value = getattr(config, name)
    found.update(fields(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value)
                 else {prefix + name: (annotation, value)})
  return found


def describe(config: Any) -> List[str]:
  """Returns `name=value` of every field, in the form that `changed` takes."""
  return [f"{name}={to_text(value)}" for name, (_, value) in fields(config).items()]


def to_text(value: object) -> str:
  """Returns a value in the form that `changed` takes."""
  if value is None or isinstance(value, bool):
    return str(value).lower()
  return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def changed(config: T, settings: Sequence[str]) -> T:
  """Sets fields by text; the checks of the dataclasses run on all new values together.

  Args:
    config: a frozen dataclass.
    settings: `name=value` each; of two for one field, the later one wins.

  Raises:
    PlacetoError: a setting is no `name=value`, a name is unknown or ambiguous, a value is of
      another type, or the dataclasses raise an error.
  """
  known = fields(config)
  values: Dict[str, Any] = {}
  for setting in settings:
    name, separator, text = setting.partition("=")
    if not separator:
      raise PlacetoError(f"setting {setting!r} was not understood; expected field=value")
    name = _full_name(name.strip(), list(known))
    annotation, value = known[name]
    try:
      values[name] = parse(text.strip(), annotation)
    except ValueError as error:
      raise PlacetoError(
          f"{name} is {text!r}, expected {error}; it is {to_text(value) or 'empty'} by default"
      ) from None
  return with_values(config, values)


def with_values(config: T, values: Mapping[str, Any]) -> T:
  """Replaces fields by their dotted names."""
  changes: Dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
  # Values of one inner dataclass are collected and replaced in one go.
  for first in {name.partition(".")[0] for name in values if "." in name}:
    inner = {name[len(first) + 1:]: value for name, value in values.items()
             if name.startswith(f"{first}.")}
    changes[first] = with_values(getattr(config, first), inner)
  return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _full_name(name: str, known: Sequence[str]) -> str:
  """Returns the dotted name of the field that is meant; its last parts are enough."""
  ends = [name] if name in known else [full for full in known if full.endswith(f".{name}")]
  if len(ends) == 1:
    return ends[0]
  if ends:
    raise PlacetoError(f"field {name!r} may be {' or '.join(ends)}; write one of these")
  near = difflib.get_close_matches(name, {*known, *(full.rpartition(".")[2] for full in known)})
  hint = f"did you mean {' or '.join(near)}? " if near else ""
  raise PlacetoError(f"there is no field {name!r}; {hint}the fields are {', '.join(known)}")


def parse(text: str, annotation: Any) -> Any:
  """Parses a value.

  Args:
    text: the value.
    annotation: type of the field: bool, int, float, str, Optional or Tuple.

  Returns:
    The value, of that type.

  Raises:
    ValueError: the text is no such value; the message has the expected form.
  """
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if origin is Union:  # Optional[X]
    return None if text.lower() == "none" else parse(text, arguments[0])
  if origin is tuple:
    return tuple(parse(each.strip(), arguments[0]) for each in text.split(",") if each.strip())
  reader, expected = _READERS[annotation]
  try:
    return reader(text)
  except (ValueError, KeyError):
    raise ValueError(expected) from None
