"""Converts placements to the JSON of placement.json and back; `placement` describes the format.

Functions here take and return the fields of a `Placement` by name.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Mapping

from placeto_tf.errors import PlacementError
from placeto_tf.files import outputs, user_files

VERSION = 2
# Fields that a file written by hand needs.
_BY_HAND = ("version", "devices", "placement")
_FIELDS = ("method", "seed", "evaluations", "step_time_us", "lower_bound_us", "replicas",
           "peak_memory_bytes", "baselines", "options")
_KEEP = "to place by hand, keep \"devices\" and \"placement\" alone"


def to_json(fields: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns the object that is written; fields that are not known are left out."""
  found: Dict[str, Any] = {"version": VERSION}
  if fields["fingerprint"]:
    found["graph"] = {
        "fingerprint": fields["fingerprint"], "fetches": list(fields["fetches"]),
        "shapes": {name: list(shape) for name, shape in fields["shapes"].items()}}
  if fields["cluster"] is not None:
    found["cluster"] = fields["cluster"]
  found["devices"] = list(fields["devices"])
  found["placement"] = dict(fields["op_devices"])
  # 0 is a value of these fields.
  found.update({name: outputs.plain(fields[name]) for name in _FIELDS
                if fields[name] not in ("", None, {})})
  # Files written by hand have no digest, so that they can be edited.
  if set(found) - set(_BY_HAND):
    found["digest"] = digest_of(found)
  return found


def digest_of(found: Mapping[str, Any]) -> str:
  """Returns the SHA-256 of all fields of a file except the digest itself."""
  # Sort keys, so that the digest does not depend on the order of fields.
  text = json.dumps({key: found[key] for key in found if key != "digest"}, sort_keys=True)
  return hashlib.sha256(text.encode("utf-8")).hexdigest()


def from_json(found: Any) -> Dict[str, Any]:
  """Reads a parsed object into fields.

  Raises:
    PlacementError: a field is wrong or missing.
  """
  found = _expect("the file", found, dict, "an object with \"devices\" and \"placement\"")
  # A file with further fields was written by a program, so it must have a digest.
  written = sorted(set(found) - set(_BY_HAND))
  version = found.get("version", None if written else VERSION)
  if version != VERSION or isinstance(version, bool):
    raise PlacementError(
        f"\"version\" is {user_files.brief(version)}, expected {VERSION}; place the graph again, "
        f"or, {_KEEP}")
  for field in ("devices", "placement"):
    if field not in found:
      raise PlacementError(
          f"\"{field}\" is missing; a placement has the device names in \"devices\" and op name: "
          "device name in \"placement\"")
  devices = _expect("\"devices\"", found["devices"], list,
                    "a list of device names such as \"/GPU:0\"")
  for name in devices:
    _expect("an entry of \"devices\"", name, str, "a name")
  placement = _expect("\"placement\"", found["placement"], dict, "an object op name: device name")
  for op, device in placement.items():
    _expect(f"the device of op {op!r}", device, str, "a device name")
  # With the right digest, all other fields are as `to_json` wrote them.
  if written and found.get("digest") != digest_of(found):
    raise PlacementError(
        f"the digest is not that of the rest of the file, which was changed after it was written; "
        f"place the graph again, or, {_KEEP}")
  graph = found.get("graph", {})
  return dict(
      op_devices=placement, devices=tuple(devices), fingerprint=graph.get("fingerprint", ""),
      fetches=tuple(graph.get("fetches", ())),
      shapes={op: tuple(shape) for op, shape in graph.get("shapes", {}).items()},
      **{field: found[field] for field in (*_FIELDS, "cluster") if field in found})


def _expect(what: str, value: Any, kind: type, expected: str) -> Any:
  if not isinstance(value, kind):
    raise PlacementError(
        f"{what} is {user_files.brief(value)}, expected {expected}; correct it or place the "
        "graph again")
  return value
