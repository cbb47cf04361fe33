import dataclasses

import numpy as np
import pytest

from placeto_tf.encoding import graph_tensor, schema
from random_problem import grouped_graph, random_problem


@pytest.fixture
def grouped():
  return grouped_graph(random_problem())


def test_features_come_through_in_the_order_of_the_groups(grouped):
  g = grouped.num_groups
  placement, start_us = np.arange(g) % 3, np.arange(g) * 10.0
  graph = graph_tensor.encode(grouped, placement, step_time_us=5.0, start_us=start_us)
  groups = graph.node_sets[schema.GROUP]
  np.testing.assert_allclose(groups["start_us"][:, 0], start_us)
  np.testing.assert_allclose(groups["output_bytes"][:, 0], grouped.output_bytes, rtol=1e-6)
  assert graph.context["step_time_us"].numpy().tolist() == [[5.0]]
  assert graph.edge_sets[schema.PLACEMENT].adjacency.target.numpy().tolist() == placement.tolist()


def test_every_field_of_a_grouped_graph_and_of_a_step_is_in_the_graph_tensor(grouped):
  g = grouped.num_groups
  pairs = np.random.default_rng(0).normal(size=grouped.allowed.shape + (32,)).astype(np.float32)
  graph = graph_tensor.encode(grouped, np.arange(g) % 3, pairs=pairs)
  options, cluster = np.nonzero(grouped.allowed), grouped.cluster
  links = np.nonzero(~np.eye(grouped.num_devices, dtype=bool))
  rows = {schema.OPTION: options, schema.DATAFLOW: grouped.flow, schema.FEEDBACK: ~grouped.flow}
  expected = {
      ("device", "memory_bytes"): cluster.memory_bytes,
      ("device", "is_host"): [device.host for device in cluster.devices],
      (schema.LINK, "bandwidth_bytes_per_us"): cluster.bandwidth_bytes_per_us[links],
      (schema.LINK, "latency_us"): cluster.fixed_us[links],
      ("group", "turn"): np.argsort(grouped.order), (schema.OPTION, "pair"): pairs[options],
      **{(name, "bytes"): grouped.edge_bytes[rows[name]]
         for name in (schema.DATAFLOW, schema.FEEDBACK)}}
  sets = {**graph.node_sets, **graph.edge_sets}
  fields = {field.name for field in dataclasses.fields(grouped)}
  for name, each in sets.items():
    for feature in set(each.features) & fields:
      value = getattr(grouped, feature)
      expected[name, feature] = value[rows[name]] if name in rows else value
  for (name, feature), value in expected.items():
    found = sets[name][feature].numpy()
    np.testing.assert_allclose(
        found, np.reshape(value, found.shape), rtol=1e-6, err_msg=feature)
  for name in (schema.DATAFLOW, schema.FEEDBACK):
    ends = graph.edge_sets[name].adjacency
    np.testing.assert_array_equal(ends.source, grouped.sources[rows[name]])
    np.testing.assert_array_equal(ends.target, grouped.targets[rows[name]])
  elsewhere = {"order", "sources", "targets", "edge_bytes", "allowed", "cluster"}
  assert fields == elsewhere | {
      feature for name, feature in expected if name not in ("device", schema.LINK)} - {
          "turn", "pair", "bytes"}
  assert graph.context["op_overhead_us"].numpy().item() == pytest.approx(
      grouped.cluster.op_overhead_us)
