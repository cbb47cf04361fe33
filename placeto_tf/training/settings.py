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
from typing import Any, Dict, List, Mapping, Sequence, TypeVar, Union

from placeto_tf.errors import PlacetoError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Field:
  """A field: its dotted name, its annotation (a type), and its value."""

  name: str
  annotation: Any
  value: Any


def fields(config: Any, prefix: str = "") -> Dict[str, Field]:
  """Lists the fields of nested dataclasses.

  Args:
    config: a dataclass.
    prefix: of the names, with its dot.

  Returns:
    Dotted name -> field, in order, for all fields that are no dataclasses.
  """
  found: Dict[str, Field] = {}
  # Resolves annotations that are text (`from __future__ import annotations`).
  annotations = typing.get_type_hints(type(config))
  for field in dataclasses.fields(config):
    value, name = getattr(config, field.name), prefix + field.name
    if dataclasses.is_dataclass(value):
      found.update(fields(value, f"{name}."))
    else:
      found[name] = Field(name, annotations[field.name], value)
  return found


def describe(config: Any) -> List[str]:
  """Returns `name=value` of every field, in the form that `changed` takes."""
  return [f"{field.name}={to_text(field.value)}" for field in fields(config).values()]


def to_text(value: object) -> str:
  """Returns a value in the form that `changed` takes."""
  if value is None or isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, tuple):
    return ",".join(map(str, value))
  return str(value)


def changed(config: T, settings: Sequence[str]) -> T:
  """Sets fields by text; the checks of the dataclasses run on all new values together.

  Args:
    config: a frozen dataclass.
    settings: `name=value` each; of two for one field, the later one wins.

  Returns:
    A changed copy.

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
    field = known[_full_name(name.strip(), known)]
    try:
      values[field.name] = parse(text.strip(), field.annotation)
    except ValueError as error:
      raise PlacetoError(
          f"{field.name} is {text!r}, expected {error}; it is "
          f"{to_text(field.value) or 'empty'} by default") from None
  return with_values(config, values)


def with_values(config: T, values: Mapping[str, Any]) -> T:
  """Replaces fields by their dotted names.

  Args:
    config: a frozen dataclass.
    values: dotted name -> new value.

  Returns:
    A changed copy.
  """
  changes: Dict[str, Any] = {}
  nested: Dict[str, Dict[str, Any]] = {}
  for name, value in values.items():
    first, separator, rest = name.partition(".")
    if separator:
      # Values of one inner dataclass are collected and replaced in one go.
      nested.setdefault(first, {})[rest] = value
    else:
      changes[first] = value
  for first, inner in nested.items():
    changes[first] = with_values(changes.get(first, getattr(config, first)), inner)
  return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _full_name(name: str, known: Mapping[str, Field]) -> str:
  if name in known:
    return name
  # The last parts of a dotted name are enough if they are unambiguous.
  ends = [full for full in known if full.endswith(f".{name}")]
  if len(ends) == 1:
    return ends[0]
  if ends:
    raise PlacetoError(f"field {name!r} may be {' or '.join(ends)}; write one of these")
  last_parts = {full.rpartition(".")[2]: full for full in known}
  # Whole names are compared first, then their last parts.
  near = difflib.get_close_matches(name, known, n=3) or [
      last_parts[each]
      for each in difflib.get_close_matches(name.rpartition(".")[2], last_parts, n=3)]
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
    if text.lower() in ("none", "null"):
      return None
    return parse(text, next(each for each in arguments if each is not type(None)))
  if origin is tuple:
    return tuple(parse(each.strip(), arguments[0]) for each in text.split(",") if each.strip())
  if annotation is bool:
    if text.lower() not in ("true", "false"):
      raise ValueError("true or false")
    return text.lower() == "true"
  for kind, expected in ((int, "a whole number"), (float, "a number")):
    if annotation is kind:
      try:
        return kind(text)
      except ValueError:
        raise ValueError(expected) from None
  return text
