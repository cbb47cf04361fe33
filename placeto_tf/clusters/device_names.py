"""Device strings as TensorFlow understands them: full, partial, and the legacy spelling."""

from __future__ import annotations

import re
from typing import Dict, Iterable, Optional, Sequence

# A part between slashes: job, replica or task with a value, or a type and perhaps an index.
_PART = re.compile(
    r"(?i)(?:(job|replica|task):([\w.*-]+)|(?:device:)?([a-z_]\w*)(?::(\d+|\*))?)")


def find_device(names: Sequence[str], text: str) -> Optional[int]:
  """Finds the first device name that agrees with all parts of a device string.

  "/GPU:1", "/device:GPU:1" and "/job:worker/task:0/gpu:1" are all understood; "" and strings
  without a device ("/job:worker") agree with the first device of their job.

  Args:
    names: names of the cluster's devices.
    text: the device string.

  Returns:
    The index of the name; None if no name agrees, or the text is no device string.
  """
  wanted = _fields(text)
  if wanted is None:
    return None
  for index, name in enumerate(names):
    # A part that the cluster's name leaves out, such as the job, agrees with anything.
    has = _fields(name) or {}
    if all(has.get(field, value) == value for field, value in wanted.items()):
      return index
  return None


def canonical(name: str) -> Optional[str]:
  """Returns the name in the form of TensorFlow's parser, or None if the name is no device.

  "/GPU:0" -> "/device:GPU:0", "/job:worker/task:1/cpu:0" -> "/job:worker/task:1/device:CPU:0".
  Replica 0, the only one that exists, is left out. A type and an index are required.
  """
  # Parts in the order of TensorFlow's own names, for any order in the text.
  fields = _fields(name) if name.startswith("/") else None
  if fields is None or not {"type", "index"} <= set(fields):
    return None
  if fields.get("replica") == "0":
    del fields["replica"]
  places = "".join(
      f"/{key}:{fields[key]}" for key in ("job", "replica", "task") if key in fields)
  return f"{places}/device:{fields['type']}:{int(fields['index'])}"


def local_name(name: str) -> Optional[str]:
  """Returns the canonical name without the job and task of a process that is not distributed."""
  device = canonical(name)
  return None if device is None else re.sub("^(/job:localhost)?(/task:0)?/", "/", device)


def short_name(name: str) -> str:
  """Shortens a device's name to its usual form: "GPU:0", or "task:1/GPU:0" of a worker."""
  # Parts that are not needed if there is one job, one replica or one worker.
  for part in ("/job:localhost", "/replica:0", "/job:worker", "device:"):
    name = name.replace(part, "")
  return name.replace("/task:0/", "/").lstrip("/")


def match(names: Iterable[str], cluster_names: Iterable[str]) -> Dict[str, Optional[int]]:
  """Finds names in a cluster in any spelling.

  Args:
    names: in any spelling.
    cluster_names: of the cluster's devices.

  Returns:
    Name -> index of the cluster's device, or None.
  """
  index = {(canonical(name) or name): i for i, name in enumerate(cluster_names)}
  return {name: index.get(canonical(name) or name) for name in names}


def _fields(name: str) -> Optional[Dict[str, str]]:
  """Returns the parts that a device string gives; None where it is no device string."""
  fields: Dict[str, str] = {}
  for part in filter(None, name.split("/")):
    found = _PART.fullmatch(part)
    if not found:
      return None
    key, value, kind, index = found.groups()
    new = {key.lower(): value} if key else {"type": kind.upper(), "index": index}
    # A part that is given twice.
    if set(new) & set(fields):
      return None
    fields.update(new)
  # "*" agrees with anything, as a part that is left out does.
  return {key: value for key, value in fields.items() if value not in (None, "*")}
