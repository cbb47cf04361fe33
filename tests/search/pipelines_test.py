"""Pipelines: what they compute, the order that is held, stages, and memory."""

import dataclasses
import re

import numpy as np
import pytest
from pipeline_graphs import BATCH, LAYERS, source
from random_cases import make_cluster, make_costs
from unhurried import compare_training

from placeto_tf.clusters import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.errors import GraphError
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.replication import replicated_costs
from placeto_tf.replication.replicated_graph import SHARED
from placeto_tf.search import micro_batch_order, pipelines
from placeto_tf.simulation import Simulator

SLOW = Cluster.parse("k80:2")
LOOP_OPS = {"Enter", "Switch", "Merge"}


def step_us(cluster, found):
  """The simulated step time of a pipeline."""
  return Simulator(found.replicated.graph, replicated_costs(found.replicated, cluster),
                   cluster).simulate(found.placement).step_time_us


@pytest.fixture(scope="module", params=[(1, 2), (1, 4), (2, 2), (2, 4)],
                ids=lambda form: "{} x {}".format(*form), name="made")
def made_fixture(request):
  """(cluster, costs, replicas without an order, pipeline)."""
  groups, count = request.param
  cluster = Cluster.parse("k80:2" if groups == 1 else "k80:4")
  replicated = source().replicas(groups * count, micro_batches=count)
  costs = replicated_costs(replicated, cluster)
  return cluster, costs, replicated, pipelines.pipeline(
      replicated, costs, cluster, allowed_devices(replicated.graph, cluster))


def test_groups_and_micro_batches_stand_in_the_graph(made):
  _, _, replicated, _ = made
  assert replicated.strategy == f"{replicated.groups} x {replicated.micro_batches}"
  assert replicated.replicas == replicated.groups * replicated.micro_batches
  assert replicated.global_batch == BATCH
  names = replicated.graph.op_names
  for op, (owner, micro_batch) in enumerate(zip(
      replicated.replica_of_op.tolist(), replicated.micro_batch_of_op.tolist())):
    if names[op].startswith("replica_"):
      assert owner == int(names[op].split("/")[0][len("replica_"):])
      assert micro_batch == owner % replicated.micro_batches
    elif owner != SHARED:  # a sum within a group
      assert micro_batch > 0 and names[op].startswith("all_reduce/")


def test_a_group_adds_up_its_gradients_one_by_one_before_groups_meet(made):
  _, _, replicated, _ = made
  graph = replicated.graph
  inputs = {}
  for producer, port, consumer in graph.edges:
    if port != CONTROL:
      inputs.setdefault(consumer, []).append(producer)
  sums = [op for op, kind in enumerate(graph.op_types)
          if kind == "AddN" and replicated.original_of_op[op] < 0]
  met = [op for op in sums if graph.op_names[op].endswith("/sum")]
  assert len(met) == LAYERS + 1  # and the loss
  assert len(sums) == len(met) * (
      replicated.replicas - (1 if replicated.groups == 1 else replicated.groups - 1))
  count = replicated.micro_batches
  for op in set(sums) - set(met):
    owners = {int(replicated.replica_of_op[producer]) for producer in inputs[op]}
    latest = int(replicated.replica_of_op[op])
    assert owners == {latest - 1, latest} and latest % count
  for op in met:
    groups = [int(replicated.replica_of_op[producer]) // count for producer in inputs[op]]
    assert groups == list(range(replicated.groups)) or groups == [0, 0]


def test_a_pipeline_trains_what_the_graph_trains(made):
  *_, found = made
  small = source(batch=16)
  count = found.replicated.replicas
  replicated = small.replicas(count, micro_batches=found.replicated.micro_batches)
  names = found.replicated.graph.op_names
  edges = [(names[u], names[v]) for u, port, v in found.replicated.graph.edges if port == CONTROL]
  ordered = pipelines.with_order(replicated, edges)
  assert ordered.graph.num_edges > replicated.graph.num_edges
  check = compare_training(small.graph, ordered, steps=3)
  assert check.checked and check.largest_difference < 1e-5


def test_what_was_simulated_is_what_the_written_graph_takes(made):
  cluster, costs, replicated, found = made
  index, ordered = replicated.graph.op_index, found.replicated.graph
  placement = np.empty_like(found.placement)
  placement[[index[name] for name in ordered.op_names]] = found.placement
  there = set(zip(
      *(np.array(replicated.graph.op_names)[ends] for ends in (
          replicated.graph.edge_producers, replicated.graph.edge_consumers))))
  edges = [(index[ordered.op_names[u]], index[ordered.op_names[v]]) for u, _, v in ordered.edges]
  names = replicated.graph.op_names
  expected = Simulator(micro_batch_order.with_edges(replicated.graph, [
      (u, v) for u, v in edges if (names[u], names[v]) not in there]), costs, cluster)
  assert step_us(cluster, found) == pytest.approx(expected.simulate(placement).step_time_us)


def test_the_order_holds_and_is_faster_than_none(made):
  cluster, costs, replicated, found = made
  index = found.replicated.graph.op_index
  without = Simulator(replicated.graph, costs, cluster).simulate(
      found.placement[[index[name] for name in replicated.graph.op_names]])
  assert step_us(cluster, found) <= without.step_time_us
  added = found.replicated.graph.num_edges - replicated.graph.num_edges
  assert 0 < added < replicated.graph.num_ops / 2


def test_a_stage_has_a_layers_forward_and_backward_pass_and_its_variable(made):
  found = made[-1]
  replicated = found.replicated
  graph, group_size = replicated.graph, replicated.micro_batches
  of_layer = {}
  for op, name in enumerate(graph.op_names):
    layer = re.search(r"/(matmul(_\d)?)(_grad)?(/|$)", name)  # forward, and both backward
    if layer and graph.op_types[op] == "MatMul":
      group = int(replicated.replica_of_op[op]) // group_size
      of_layer.setdefault((group, layer[1]), set()).add(int(found.placement[op]))
  assert len(of_layer) == LAYERS * replicated.groups and all(
      len(devices) == 1 for devices in of_layer.values())
  for group in range(replicated.groups):
    used = set().union(*(devices for (of, _), devices in of_layer.items() if of == group))
    assert len(used) == 2  # two stages each


def test_edges_never_make_a_cycle():
  replicated = source().replicas(4, micro_batches=4)
  costs = replicated_costs(replicated, SLOW)
  rng = np.random.default_rng(0)
  devices = [d for d, device in enumerate(SLOW.devices) if not device.host]
  group = np.zeros(replicated.graph.num_ops, dtype=int)
  for first in (micro_batch_order.OLDEST, micro_batch_order.SHALLOWEST):
    for in_flight in (1, 2, 4):
      placement = rng.choice(devices, replicated.graph.num_ops).astype(np.int32)
      edges = micro_batch_order.order_edges(
          replicated.graph, costs, SLOW, placement, replicated.micro_batch_of_op, group, in_flight,
          first)
      ordered = micro_batch_order.with_edges(replicated.graph, edges)
      depths = ordered.depths  # raises where there is a cycle
      assert all(depths[u] < depths[v] for u, v in edges)


def test_fewer_micro_batches_under_way_hold_less_memory():
  replicated = source(batch=16384).replicas(8, micro_batches=8)
  costs = replicated_costs(replicated, SLOW)
  allowed = allowed_devices(replicated.graph, SLOW)
  found = pipelines.pipeline(replicated, costs, SLOW, allowed)
  index = found.replicated.graph.op_index
  placement = found.placement[[index[name] for name in replicated.graph.op_names]]
  group = np.zeros(replicated.graph.num_ops, dtype=int)
  peaks = []
  for in_flight in (8, 2):
    edges = micro_batch_order.order_edges(
        replicated.graph, costs, SLOW, placement, replicated.micro_batch_of_op, group, in_flight)
    ordered = micro_batch_order.with_edges(replicated.graph, edges)
    peaks.append(Simulator(ordered, costs, SLOW).simulate(placement).peak_memory_bytes.max())
  assert peaks[1] < 0.7 * peaks[0]
  # Where only that fits, it is what `pipeline` takes.
  short = dataclasses.replace(SLOW, devices=tuple(
      dataclasses.replace(device, memory_bytes=int(sum(peaks) / 2)) for device in SLOW.devices))
  limited = pipelines.pipeline(replicated, costs, short, allowed)
  result = Simulator(limited.replicated.graph, replicated_costs(limited.replicated, short),
                     short).simulate(limited.placement)
  assert result.fits and result.step_time_us > step_us(SLOW, found)


def test_a_value_that_all_micro_batches_join_forbids_to_begin_few():
  """The norm of all gradients is known once every micro-batch has ended."""
  replicated = source(clip=1e-3).replicas(4, micro_batches=4)
  costs = replicated_costs(replicated, SLOW)
  found = pipelines.pipeline(replicated, costs, SLOW, allowed_devices(replicated.graph, SLOW))
  assert step_us(SLOW, found) > 0


def test_branches_are_refused():
  replicated = source(branch=True).replicas(2, micro_batches=2)
  assert LOOP_OPS & set(replicated.graph.op_types)
  costs = replicated_costs(replicated, SLOW)
  with pytest.raises(GraphError, match="branches or loops"):
    pipelines.pipeline(replicated, costs, SLOW, allowed_devices(replicated.graph, SLOW))


def test_a_pipeline_is_promising_where_its_estimate_is_lower():
  whole = source(batch=65536)
  part, alone = whole.part(4), whole.graph
  from placeto_tf.costs import estimate_costs

  single_us = Simulator(alone, estimate_costs(alone, SLOW), SLOW).simulate(
      np.zeros(alone.num_ops, dtype=np.int32)).step_time_us
  repeated = np.array([not kind.startswith("ResourceApply") for kind in part.op_types])
  assert pipelines.promising(part, repeated, SLOW, 1, 4, np.inf)
  assert pipelines.promising(part, repeated, SLOW, 1, 4, single_us)
  assert not pipelines.promising(part, repeated, SLOW, 1, 4, single_us / 4)
  assert not pipelines.promising(part, repeated, SLOW, 2, 2, np.inf)  # two devices, two groups


@pytest.mark.parametrize("transfers, expected_us", [
    # op0@0-1 sends 4 bytes to device 1, then 2 to both: sent at 5 and 7, op2@7-27 and op3@7-29.
    ("device", 29.0),
    ("pair", 27.0),  # device 2 has its 2 bytes at 3: op3@3-25
    ("unlimited", 25.0)])  # and so has device 1: op2@3-23
def test_the_schedule_of_micro_batches_queues_transfers_as_the_cluster_does(
    transfers, expected_us):
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(4)], ["X"] * 4, [2, 1, 1, 1], [(0, 0, 1), (0, 1, 2), (0, 1, 3)])
  costs = make_costs([1, 1, 20, 22], [4, 2, 0, 0, 0])
  cluster = make_cluster(3, transfers=transfers)
  placement, once = np.array([0, 1, 1, 2]), np.zeros(4, dtype=np.int32)
  schedule = micro_batch_order._Schedule(
      graph, costs, cluster, placement, once, once, 1, micro_batch_order.OLDEST)
  assert schedule.run() is not None
  assert schedule.end == expected_us
  assert Simulator(graph, costs, cluster).simulate(placement).step_time_us == expected_us
