"""Sets the devices of a graph's nodes, in TensorFlow's spelling.

Here, a placement is any mapping from op names to device names.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence

from placeto_tf.clusters import device_names
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.collective_groups import members_together


def place_nodes(placement: Mapping[str, str], nodes: Iterable[Any]) -> None:
  """Sets the device of each NodeDef; changes none of them if a node has no device.

  Raises:
    PlacementError: a node has no device, TensorFlow does not know the name of a device, or two
      members of a collective group are on one device.
  """
  # A list, because the nodes are walked twice.
  nodes = list(nodes)
  devices = devices_of(placement, [node.name for node in nodes])
  check_apart(nodes, devices)
  for node, device in zip(nodes, devices):
    node.device = device


def check_apart(nodes: Sequence[Any], devices: Sequence[str]) -> None:
  """Refuses a placement with which TensorFlow would wait for ever.

  Raises:
    PlacementError: two members of a collective group are on one device.
  """
  pair = members_together(nodes, devices)
  if pair is not None:
    first, second = (nodes[op] for op in pair)
    raise PlacementError(
        f"ops {first.name!r} and {second.name!r} ({second.op}) are members of one collective group "
        f"and both on {devices[pair[0]]}, where TensorFlow would wait for ever; place them on "
        "different devices, as place() does")


def devices_of(placement: Mapping[str, str], names: Iterable[str]) -> List[str]:
  """Returns the canonical device of each named op.

  Returns:
    The devices as TensorFlow spells them, in the order of the names.

  Raises:
    PlacementError: an op has no device, or TensorFlow does not know the name of a device.
  """
  canonical = canonical_devices(placement)
  devices = []
  for name in names:
    device = placement.get(name)
    if device is None:
      replicas = getattr(placement, "replicas", None) or 1
      if replicas > 1:
        raise PlacementError(
            f"the placement is of {replicas} replicas, which the graph does not have; call "
            "apply(graph) of the result of place() instead, which puts them in, or take the placed "
            "graph that placeto-place wrote")
      raise PlacementError(
          f"the placement has no device for op {name!r}; it is for another graph, or for a part "
          "of this one: place this graph again")
    devices.append(canonical[device])
  return devices


def canonical_devices(placement: Mapping[str, str]) -> Dict[str, str]:
  """Returns the placement's spelling of each device name -> TensorFlow's spelling.

  Raises:
    PlacementError: TensorFlow does not know the name of a device.
  """
  canonical: Dict[str, str] = {}
  # Convert each name once, because there are few devices and many ops.
  for name in dict.fromkeys(placement.values()):
    device = device_names.canonical(name)
    if device is None:
      raise PlacementError(
          f"{name!r} is no device that TensorFlow knows; expected a name such as '/GPU:0' or "
          "'/job:worker/task:1/device:CPU:0': rename the device in the cluster")
    canonical[name] = device
  return canonical
