"""Replicas as graphs to place: layouts, the symmetric search, the baseline, real sessions."""


import numpy as np
import pytest
import tensorflow as tf

import sessions
import training_models as models
from placeto_tf.clusters import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.costs import estimate_costs
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import data_parallel, replicate, replicated_costs
from placeto_tf.replication.layouts import layouts, shares
from placeto_tf.replication.replicated_graph import SHARED
from placeto_tf.search.symmetric import anneal_symmetric, device_images, device_orders, place_shares


def made(replicas, mirrored=False):
  graph = load_graph(models.dense_graph(), fetches=["train", "loss:0"])
  return replicate(graph, replicas, mirrored=mirrored)


def rows_twice():
  """Adagrad on the rows of a table that is read twice, as Keras 3 does: the rows are joined, their
  squares are added to the slot; 3 + 1 rows of 8 numbers for each example."""
  graph = tf.Graph()
  with graph.as_default():
    many = tf.compat.v1.placeholder(tf.int32, [None, 3], "many")
    one = tf.compat.v1.placeholder(tf.int32, [None], "one")
    table, slot = (tf.compat.v1.get_variable(
        name, [50, 8], use_resource=True, initializer=tf.compat.v1.ones_initializer())
                   for name in ("table", "slot"))
    rows = tf.reduce_mean(tf.nn.embedding_lookup(table, many), 1) * tf.nn.embedding_lookup(
        table, one)
    loss = tf.reduce_mean(rows, name="loss")
    found, = tf.gradients(loss, [table])
    squared = tf.raw_ops.ResourceScatterAdd(
        resource=slot.handle, indices=found.indices, updates=tf.square(found.values, "squares"))
    with tf.control_dependencies([squared]):
      scale = tf.gather(slot.read_value(), found.indices)
    tf.raw_ops.ResourceScatterSub(
        resource=table.handle, indices=found.indices, updates=found.values / scale, name="train")
  return load_graph(graph.as_graph_def(), fetches=["train", "loss:0"], batch_size=4)


@pytest.fixture(scope="module", name="replicated")
def replicated_fixture():
  return made(2)


def problem_of(replicated, cluster):
  return PlacementProblem.build(
      replicated.graph, cluster, costs=replicated_costs(replicated, cluster), max_groups=16,
      replicated=replicated)


@pytest.fixture(scope="module", name="problem")
def problem_fixture(replicated):
  return problem_of(replicated, Cluster.parse("k80:2"))


@pytest.mark.parametrize("mirrored", (False, True))
@pytest.mark.parametrize("rows", (False, True))
def test_costs_of_replicas_are_those_that_counting_their_work_gives(rows, mirrored):
  cluster = Cluster.parse("k80:2")
  replicated = replicate(rows_twice(), 4, mirrored=mirrored) if rows else made(2, mirrored)
  counted = estimate_costs(replicated.graph, cluster, cache=False)
  derived = replicated_costs(replicated, cluster)
  copied = replicated.original_of_op >= 0
  copied &= replicated.replica_of_op != SHARED
  np.testing.assert_allclose(derived.compute_us[copied], counted.compute_us[copied])
  packed = (replicated.original_of_op < 0) & (replicated.replica_of_op != SHARED)
  assert packed.any() or rows
  np.testing.assert_allclose(derived.compute_us[packed], counted.compute_us[packed], rtol=1e-3)
  np.testing.assert_allclose(derived.persistent_bytes, counted.persistent_bytes)
  np.testing.assert_allclose(derived.output_bytes, counted.output_bytes)
  assert derived.compute_us.sum() == pytest.approx(counted.compute_us.sum(), rel=0.02)


@pytest.mark.parametrize("mirrored", (False, True))
def test_rows_of_a_gradient_are_gathered_once_and_counted_once(mirrored):
  """Four replicas of 4 examples: 16 x 3 and 16 rows are gathered, joined and squared, 32 bytes
  each; with mirrored variables, each replica does so."""
  replicated = replicate(rows_twice(), 4, mirrored=mirrored)
  graph, costs = replicated.graph, replicated_costs(replicated, Cluster.parse("k80:4"))
  sizes = {name: costs.output_bytes[graph.output_offsets[op]]
           for op, name in enumerate(graph.op_names)}
  # [bytes] of the gathered tensors of one replica; indices have 4 bytes.
  gathered = sorted(sizes[name] for op, name in enumerate(graph.op_names) if (
      graph.op_types[op] == "ConcatV2" and name.startswith("all_gather/")))
  assert gathered == sorted([16 * 3 * 32, 16 * 32, 16 * 3 * 4, 16 * 4])
  squares = [name for name in graph.op_names if name.split("/")[-1] == "squares"]
  assert len(squares) == (4 if mirrored else 1)
  assert {sizes[name] for name in squares} == {16 * 4 * 32}


def test_devices_are_shared_equally_or_in_turn():
  assert shares([0, 1, 2, 3], 2) == [[0, 1], [2, 3]]
  assert shares([0, 1], 4) == [[0], [1], [0], [1]]
  assert shares([0, 1, 2], 2) == [[0], [1]]


def test_every_replica_lies_on_its_share(replicated, problem):
  one, spread = layouts(replicated, problem.costs, [0, 1])
  for r in range(2):
    own = replicated.replica_of_op == r
    together = np.isin(  # what must be with a variable goes with it
        replicated.graph.colocation[own],
        replicated.graph.colocation[replicated.replica_of_op == SHARED])
    assert (one[own][~together] == r).all()
  assert set(one[replicated.replica_of_op == SHARED]) == {0}
  variables = [i for i, kind in enumerate(replicated.graph.op_types) if kind == "VarHandleOp"]
  assert set(spread[variables]) == {0, 1}


def test_images_keep_hosts_and_turn_the_devices():
  assert device_images([0, 1, 2, 3], 5, 2).tolist() == [[0, 1, 2, 3, 4], [2, 3, 0, 1, 4]]


def test_whole_replicas_can_begin_inside_one_host(replicated):
  """Two hosts of two devices: a stretch a host, or both replicas on one host's devices."""
  slow = Cluster.parse("v100:2x2@1gbit")
  problem = problem_of(replicated, slow)
  a, b, c, d = [i for i, device in enumerate(slow.devices) if not device.host]
  assert device_orders(problem, 2) == [[a, b, c, d], [a, c, b, d]]
  assert device_orders(problem, 4) == [[a, b, c, d]]
  start = place_shares(problem)
  own = [set(start[replicated.replica_of_op == r].tolist()) & {a, b, c, d} for r in range(2)]
  assert own == [{a}, {b}]  # gradients over 1 Gbit/s would take longer than the step


def test_replicas_that_move_together_stay_each_others_images(problem, replicated):
  problem = problem.renewed()
  start_us = problem.simulator.simulate(place_shares(problem)).step_time_us
  found = anneal_symmetric(problem, Budget(max_evaluations=300), 0)
  assert problem.simulator.simulate(found).step_time_us <= start_us
  assert problem.search_log.evaluations <= 300
  images = device_images([0, 1], problem.num_devices, 2)
  copies = {}
  with_shared = set(replicated.graph.colocation[replicated.replica_of_op == SHARED].tolist())
  for op, (original, r) in enumerate(zip(replicated.original_of_op, replicated.replica_of_op)):
    if r != SHARED and int(replicated.graph.colocation[op]) not in with_shared:
      copies.setdefault(int(original), {})[int(r)] = int(found[op])
  assert copies and all(images[1, where[0]] == where[1] for where in copies.values())


def test_mirrored_variables_take_a_ring_and_an_optimizer_each(replicated, problem):
  """Two devices: half of each gradient goes either way, twice."""
  hosts = np.where(problem.allowed_ops[:, 0], -1, problem.allowed_ops.argmax(1))
  found = data_parallel(replicated, problem.costs, problem.cluster, [0, 1], hosts)
  weights_bytes = 3 * 64 * 64 * 4
  between = np.isin(found.transfers.sources, [0, 1]) & found.transfers.destinations[:, :2].any(1)
  assert found.transfers.sizes_bytes[between].sum() == 2 * weights_bytes
  # Both devices hold all variables and their momenta, and are alike in all else.
  assert found.fits and found.peak_memory_bytes[0] == found.peak_memory_bytes[1]
  assert found.peak_memory_bytes[0] > 2 * weights_bytes
  single = replicate(replicated.original, 1)
  alone = PlacementProblem.build(single.graph, problem.cluster, max_groups=16)
  one_us = alone.simulator.simulate(
      np.where(alone.allowed_ops[:, 0], 0, alone.allowed_ops.argmax(1))).step_time_us
  bandwidth = problem.cluster.bandwidth_bytes_per_us[0, 1]
  assert found.step_time_us > one_us
  # One tensor: its half is sent twice, one after the other; the rest can hide behind compute.
  assert found.step_time_us > one_us + 2 * (64 * 64 * 4 / 2) / bandwidth - 1


@pytest.mark.parametrize("mirrored", (False, True))
def test_in_sessions_every_op_is_where_the_placement_says(mirrored):
  replicated, cluster = made(4, mirrored), Cluster.parse("cpu:4")
  graph = replicated.graph.source.tf_graph
  allowed = allowed_devices(replicated.graph, cluster)
  indices = layouts(replicated, replicated_costs(replicated, cluster), [0, 1, 2, 3])[1]
  assert allowed[np.arange(len(indices)), indices].all()
  placement = Placement.from_indices(replicated.graph, cluster, indices)
  placement.apply(graph)
  sessions.assert_runs_as_placed(graph, replicated, placement, np.ones([16, 64], np.float32))
