"""Grappler's op-level cost model, asked once for a graph, whatever the devices.

Grappler estimates the time of an op as flops / peak + bytes / bandwidth (without overlap), from
inferred shapes, in whole microseconds. On real devices, three quarters of a graph's ops would take
0 microseconds. So grappler estimates times for a reference device that needs one microsecond for a
flop and one for a byte: these times are exact numbers of flops and bytes. `roofline` converts them
to times on any device, by grappler's own formula.

Grappler's bindings throw several kinds of exceptions, some of TensorFlow's own, if grappler cannot
read a graph; `guarded` turns them into a CostError.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence

from placeto_tf.errors import CostError

_UNIT_NS = 1_000  # time of a flop, and of a byte, on the reference device at scale 1
_LIMIT_NS = 2**62  # of int64 nanoseconds, in which grappler adds up the whole step


class OpEstimate(NamedTuple):
  """The counts of grappler for one execution of an op."""

  flops: float
  moved_bytes: float
  temporary_bytes: float


class Question:
  """A GraphDef that grappler analyses; counts take three times as long as shapes."""

  def __init__(self, graph_def: Any, fetches: Sequence[str]):
    """Analyses a GraphDef.

    Args:
      graph_def: the graph; its devices are not looked at.
      fetches: names of the ops to run; nothing else is counted.
    """
    from tensorflow.core.protobuf import meta_graph_pb2
    from tensorflow.python.grappler import item as grappler_item

    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph_def)
    # Grappler counts the ops that these need, and no others.
    meta_graph.collection_def["train_op"].node_list.value.extend(fetches)
    self._item = grappler_item.Item(meta_graph, ignore_user_placement=True)

  def outputs(self) -> Dict[str, List[Any]]:
    """Returns op name -> `OpInfo.TensorProperties` of each output: dtype and inferred shape."""
    return self._item.GetOpProperties()

  def estimates(self) -> Dict[str, OpEstimate]:
    """Returns op name -> counts, at the finest scale at which they do not overflow.

    Ops that grappler's scheduler leaves out (in a branch that is known not to be taken) are
    missing.

    Raises:
      CostError: the counts overflow.
    """
    # Coarser scales count in thousands and in millions of flops and bytes.
    for scale in (1, 10**3, 10**6):
      performances = _measure(self._item, scale)
      # Each summand is checked, because a sum that has overflowed may be anything.
      if all(performance.compute_time >= 0 and performance.memory_time >= 0
             for performance in performances) and sum(
                 performance.compute_time + performance.memory_time
                 for performance in performances) < _LIMIT_NS:
        break
    else:
      raise CostError("the graph's flops overflow grappler's counters even in millions; check the "
                      "shapes of its feeds")
    # Nanoseconds at this scale -> flops or bytes.
    unit = scale / _UNIT_NS
    return {
        performance.node: OpEstimate(
            performance.compute_time * unit, performance.memory_time * unit,
            float(max(performance.op_memory.temp_memory, 0)))
        for performance in performances}


def _measure(item: Any, scale: int) -> List[Any]:
  """Measures each op on the reference device, made `scale` times faster."""
  from tensorflow.core.protobuf import device_properties_pb2
  from tensorflow.python.grappler import cluster as grappler_cluster

  # A CPU, because grappler takes its flops from cores * MHz without further factors.
  # One core at `scale` MHz and `scale` MB/s: 1 flop takes 1/scale us, 1 byte likewise.
  properties = device_properties_pb2.DeviceProperties(
      type="CPU", num_cores=1, frequency=scale, bandwidth=1_000 * scale)
  device = device_properties_pb2.NamedDevice(
      name="/job:localhost/replica:0/task:0/device:CPU:0", properties=properties)
  cluster = grappler_cluster.Cluster(devices=[device])
  try:
    performances, _, _ = cluster.MeasureCosts(item)
  finally:
    cluster.Shutdown()
  return performances
