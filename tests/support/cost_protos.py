"""Costs as the protos that `placeto_tf.costs` reads, for tests of its readers."""

from tensorflow.core.framework import cost_graph_pb2
from tensorflow.core.grappler.costs import op_performance_data_pb2

from placeto_tf.graphs.computation_graph import CONTROL


def to_cost_graph(graph, costs, kind=0):
  """A CostGraphDef of the graph, with the costs of one kind of devices in whole microseconds."""
  result = cost_graph_pb2.CostGraphDef()
  for i, name in enumerate(graph.op_names):
    node = result.node.add(
        name=name, id=i, compute_cost=_whole(costs.compute_us[i, kind]),
        temporary_memory_size=round(costs.temporary_bytes[i]),
        persistent_memory_size=round(costs.persistent_bytes[i]))
    outputs = range(graph.output_offsets[i], graph.output_offsets[i + 1])
    for output in outputs:
      node.output_info.add(size=round(costs.output_bytes[output]), alias_input_port=-1)
    node.is_final = any(graph.fetched_outputs[output] for output in outputs)
  for producer, port, consumer in graph.edges:
    if port == CONTROL:
      result.node[consumer].control_input.append(producer)
    else:
      result.node[consumer].input_info.add(preceding_node=producer, preceding_port=port)
  return result


def to_op_performances(graph, costs, cluster):
  """An OpPerformanceList with an entry for each op on each kind of device."""
  result = op_performance_data_pb2.OpPerformanceList()
  for k, device in enumerate(cluster.kind_devices):
    for i, name in enumerate(graph.op_names):
      entry = result.op_performance.add(
          node=name, compute_cost=_whole(costs.compute_us[i, k] * 1e3))
      entry.op.op, entry.op.device.type = graph.op_types[i], device.type
      entry.op_memory.output_memory.extend(
          round(size) for size in
          costs.output_bytes[graph.output_offsets[i]:graph.output_offsets[i + 1]])
      entry.op_memory.temp_memory = round(costs.temporary_bytes[i])
      entry.op_memory.persistent_memory = round(costs.persistent_bytes[i])
  return result


def _whole(cost):
  """Only what costs nothing becomes 0."""
  return max(1, round(cost)) if cost > 0 else 0
