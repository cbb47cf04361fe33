"""Maps devices of a cluster to devices of a runtime."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence

from placeto_tf.clusters import device_names
from placeto_tf.errors import PlacementError


def parse_device_map(text: str) -> Dict[str, str]:
  """Reads {"/GPU:0": "/CPU:1"} from "/GPU:0=/CPU:1,/GPU:1=/job:worker/task:1/device:CPU:0".

  Raises:
    PlacementError: the text is not of that form.
  """
  found = {}
  for part in text.split(","):
    source, equals, target = part.strip().partition("=")
    if not equals or not source.startswith("/") or not target.startswith("/"):
      raise PlacementError(
          f"device map {part!r} was not understood; expected /DEVICE=/DEVICE, such as "
          "/GPU:0=/job:worker/task:1/device:CPU:0")
    if source in found:
      raise PlacementError(f"device map names {source} twice; map each device once")
    found[source] = target
  return found


def match_devices(
    names: Sequence[str], runtime_devices: Sequence[str],
    device_map: Optional[Mapping[str, str]] = None,
) -> Dict[str, str]:
  """Maps each device of a placement to the canonical device of the runtime.

  By the map if there is one, else by name. If neither side has any name of the other and all are of
  one type, it is by position: "/CPU:1" is the second worker's CPU.

  Args:
    names: of the placement's devices.
    runtime_devices: canonical names of the runtime's devices.
    device_map: device of the placement -> device of the runtime, where names differ.

  Returns:
    Name of the placement's device -> canonical name of the runtime's.

  Raises:
    PlacementError: a device has no counterpart.
  """
  given = {_canonical(source): _canonical(target) for source, target in (device_map or {}).items()}
  available = list(runtime_devices)
  unused = sorted(set(given) - {_canonical(name) for name in names})
  if unused:
    raise PlacementError(f"the device map names {unused[0]}, which is no device of the placement; "
                         f"expected some of {', '.join(names)}")
  found = {}
  wanted = [given.get(_canonical(name), _canonical(name)) for name in names]
  # By position: no name in common, enough devices, and a single type on both sides.
  if not given and not set(wanted) & set(available) and len(available) >= len(wanted) and len(
      {device.rpartition("device:")[2].partition(":")[0] for device in wanted + available}) == 1:
    wanted = available[:len(wanted)]
  for name, device in zip(names, wanted):
    if device not in available:
      raise PlacementError(
          f"device {name} stands for {device}, which is none of {', '.join(available)}; map it "
          "with a device map, or start more workers")
    found[name] = device
  return found


def _canonical(name: str) -> str:
  device = device_names.canonical(name)
  if device is None:
    raise PlacementError(f"{name!r} is no device name; expected one such as /CPU:0")
  return device
