"""The cluster JSON: writes a `Cluster` to a file and reads it back.

docs/cluster_json.md describes it for users, field by field; change both.

  {"devices": [{"name": "/GPU:0", "type": "GPU", "memory_bytes": 12884901888,
                "efficiency": 0.3, "properties": {"type": "GPU", "frequency": 823, ...}}, ...],
   "links": {"default": {"bandwidth_bytes_per_us": 7600, "latency_us": 25},
             "pairs": [{"from": "/GPU:0", "to": "/GPU:1", "bandwidth_bytes_per_us": 12000,
                        "latency_us": 25}, ...]},
   "op_overhead_us": 5.7}

A device may also have "host" and "own_costs" (default false), "op_efficiency" and "product_peaks"
(default empty); its "efficiency" is 1 if left out; its "properties" are those of DeviceProperties
in proto JSON.
Links are directed. "default" holds for every pair that "pairs" does not list; a pair may leave out
fields that equal the default's. Each extension of the simulator has a field, named as in `Cluster`,
which is written only if the extension is on.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Sequence, Union

import numpy as np

from placeto_tf.clusters.device import Device, is_number
from placeto_tf.errors import ClusterError
from placeto_tf.files import outputs, user_files

_LINK_FIELDS = ("bandwidth_bytes_per_us", "latency_us")
MAX_DEVICES = 4096  # the links of more devices would fill the memory
_STRUCTURE = ("devices",) + _LINK_FIELDS  # fields that are no extension of the simulator
_PROPERTY_FIELDS = frozenset(
    "type vendor model frequency numCores environment numRegisters l1CacheSize l2CacheSize "
    "l3CacheSize sharedMemorySizePerMultiprocessor memorySize bandwidth".split())


def to_json(fields: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns the JSON object of a cluster.

  Args:
    fields: the fields of the `Cluster` that differ from their defaults, from `changed_fields`.

  Returns:
    Plain dictionaries, lists, strings and numbers.
  """
  devices: Sequence[Device] = fields["devices"]
  found: Dict[str, Any] = {"devices": [outputs.plain(changed_fields(device)) for device in devices]}
  links = _links_to_json(
      [device.name for device in devices], [fields[name] for name in _LINK_FIELDS])
  if links:
    found["links"] = links
  found.update(outputs.plain(
      {name: value for name, value in fields.items() if name not in _STRUCTURE}))
  # Always written, because readers of the file cannot guess the value.
  found["op_overhead_us"] = float(fields.get("op_overhead_us", 0.0))
  return found


def from_json(
    source: Union[str, Mapping[str, Any]], field_names: Sequence[str]) -> Dict[str, Any]:
  """Reads JSON text or a parsed object into the fields of a `Cluster`; see `Cluster.from_json`.

  Args:
    source: JSON text, or its parsed object.
    field_names: all fields that a `Cluster` has.

  Returns:
    Field -> value, for fields that the JSON gives.

  Raises:
    ClusterError: bad JSON; an unknown, missing or wrong field; a link that is missing.
  """
  parsed: Any = source
  if isinstance(source, str):
    try:
      parsed = user_files.parse_json(source)
    except ValueError as error:
      raise ClusterError(
          f"the cluster is not JSON ({error}); expected an object with \"devices\"") from None
  # Every other field of `Cluster` is an extension of the simulator with its own name.
  extensions = [name for name in field_names if name not in _STRUCTURE]
  _expect_object(parsed, "the cluster", required=("devices",), optional=["links"] + extensions)
  if not isinstance(parsed["devices"], list) or not parsed["devices"]:
    raise ClusterError(
        "\"devices\" of the cluster is empty; expected a list of at least one device")
  # Before anything of size D * D is made.
  if len(parsed["devices"]) > MAX_DEVICES:
    raise ClusterError(
        f"the cluster has {len(parsed['devices']):,} devices; expected at most {MAX_DEVICES:,}, as "
        "every two of them have a link")
  devices = [_device_from_json(device, i) for i, device in enumerate(parsed["devices"])]
  # `Cluster` refuses a name that appears twice.
  links = _links_from_json(
      parsed.get("links", {}), {device.name: i for i, device in enumerate(devices)})
  values = {name: parsed[name] for name in extensions if name in parsed}
  return {"devices": tuple(devices), **links, **values}


def changed_fields(instance: Any) -> Dict[str, Any]:
  """Returns the fields of a dataclass that differ from their defaults, in order."""
  found = {}
  for field in dataclasses.fields(instance):
    value = getattr(instance, field.name)
    # Mutable defaults are made again for the comparison.
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
      default = field.default_factory()
    # Fields without a default, such as the arrays of links, are always written.
    if default is dataclasses.MISSING or value != default:
      found[field.name] = value
  return found


def _expect_object(
    value: object, what: str, required: Sequence[str] = (), optional: Sequence[str] = ()) -> None:
  """Raises ClusterError unless `value` is an object with these fields and no others."""
  if not isinstance(value, Mapping):
    raise ClusterError(f"{what} is {value!r:.60}; expected an object")
  known = list(required) + list(optional)
  for name in value:
    if name not in known:
      raise ClusterError(f"{what} has an unknown field {name!r}; expected {', '.join(known)}")
  for name in required:
    if name not in value:
      raise ClusterError(f"{what} has no field {name!r}; add it")


def _device_from_json(value: Any, index: int) -> Device:
  """Reads and checks a device; `index` names the device in errors."""
  fields = dataclasses.fields(Device)
  required = ("name", "type", "memory_bytes")
  what = f"device {index}"
  # Errors give a device's name or, if it has none, its position in the list.
  if isinstance(value, Mapping) and isinstance(value.get("name"), str):
    what = f"device {value['name']!r}"
  _expect_object(value, what, required,
                 [field.name for field in fields if field.name not in required])
  properties = value.get("properties", {})
  _expect_object(properties, f"\"properties\" of {what}", optional=sorted(_PROPERTY_FIELDS))
  for field in ("host", "own_costs"):
    if not isinstance(value.get(field, False), bool):
      raise ClusterError(f"\"{field}\" of {what} is {value[field]!r}; expected true or false")
  return Device(**value)


def _links_from_json(links: Any, names: Mapping[str, int]) -> Dict[str, np.ndarray]:
  """Reads links into [D, D] matrices of bandwidth and latency."""
  _expect_object(links, "\"links\"", optional=("default", "pairs"))
  d = len(names)
  default = links.get("default", {})
  _expect_object(default, "\"default\" of \"links\"", optional=_LINK_FIELDS)
  # [D, D] each, filled with the default; NaN without a default.
  matrices = {
      field: np.full((d, d), _number(default, field, "the default link"), dtype=np.float64)
      for field in _LINK_FIELDS}
  pairs = links.get("pairs", [])
  if not isinstance(pairs, list):
    raise ClusterError(f"\"pairs\" of \"links\" is {pairs!r:.60}; expected a list of links")
  seen = set()
  # Each listed pair overwrites the fields that it gives, in its direction only.
  for k, pair in enumerate(pairs):
    _expect_object(pair, f"link {k} of \"pairs\"", required=("from", "to"), optional=_LINK_FIELDS)
    for end in ("from", "to"):
      if not isinstance(pair[end], str) or pair[end] not in names:
        raise ClusterError(f"link {k} of \"pairs\" goes {end} {pair[end]!r}, which is no device; "
                           f"expected one of {', '.join(names)}")
    i, j = names[pair["from"]], names[pair["to"]]
    if i == j or (i, j) in seen:
      raise ClusterError(f"link {k} of \"pairs\", from {pair['from']} to {pair['to']}, "
                         + ("joins a device to itself" if i == j else "is listed twice")
                         + "; remove it")
    seen.add((i, j))
    for field in _LINK_FIELDS:
      if field in pair:
        matrices[field][i, j] = _number(pair, field, f"the link {pair['from']} to {pair['to']}")
  for field in _LINK_FIELDS:
    # NaN is left only if neither a pair nor a default gives a value.
    missing = np.isnan(matrices[field])
    # A device needs no link to itself.
    np.fill_diagonal(missing, False)
    if missing.any():
      i, j = (int(k) for k in np.argwhere(missing)[0])
      ends = list(names)
      raise ClusterError(f"the link from {ends[i]} to {ends[j]} has no {field}; list it in "
                         "\"pairs\" or give a \"default\"")
  return matrices


def _number(link: Mapping[str, Any], field: str, what: str) -> float:
  """Reads a number, NaN if it is missing; `Cluster` checks the range."""
  if field in link and not is_number(link[field]):
    raise ClusterError(f"{field} of {what} is {link[field]!r}; expected a number")
  return float(link.get(field, "nan"))


def _links_to_json(names: Sequence[str], matrices: Sequence[np.ndarray]) -> Dict[str, Any]:
  """Writes the most frequent link as the default, the others as pairs; [D, D] a field."""
  apart = ~np.eye(len(names), dtype=bool)
  if not apart.any():
    return {}
  # [D, D] complex, both fields in one number: there are few kinds, but maybe millions of links.
  kinds = matrices[0] + 1j * matrices[1]
  known, first, count = np.unique(kinds[apart], return_index=True, return_counts=True)
  most = known[np.lexsort((first, -count))[0]]  # of equally frequent kinds the first one

  def link(kind: complex) -> Dict[str, float]:
    """Returns the JSON fields of a link."""
    return dict(zip(_LINK_FIELDS, (kind.real, kind.imag)))

  found: Dict[str, Any] = {"default": link(complex(most))}
  # Every link of another kind is listed in full.
  pairs = [{"from": names[i], "to": names[j], **link(complex(kinds[i, j]))}
           for i, j in np.argwhere(apart & (kinds != most)).tolist()]
  if pairs:
    found["pairs"] = pairs
  return found
