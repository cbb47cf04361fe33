"""Maps devices of a cluster to devices of a runtime."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence

from placeto_tf.clusters import device_names
from placeto_tf.errors import PlacementError


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
  if not available:
    raise PlacementError(
        "the runtime has no devices: it was not started; use it inside `with runtime:`")
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
