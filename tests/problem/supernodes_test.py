import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from properties import examples

import plain_grouping
from placeto_tf.errors import PlacementError
from placeto_tf.grouping.heavy_edge import heavy_edge
from placeto_tf.problem.supernodes import Supernodes, placed_supernodes
from random_problem import random_problem


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(1, 40))
@examples(60)
def test_supernodes_are_those_of_sorted_arrays(seed, count):
  problem = random_problem(num_ops=60, seed=seed % 10)
  labels = np.random.default_rng(seed).integers(0, count, 60)
  supernodes = Supernodes(problem, labels)
  _, supernode_of_op = np.unique(labels, return_inverse=True)
  tables = supernodes.tables
  assert [ops.tolist() for ops in np.split(tables.ops, tables.op_offsets[1:-1])] == [
      np.flatnonzero(supernode_of_op == u).tolist() for u in range(len(supernodes))]
  producers, consumers, _ = plain_grouping.traffic_between(
      problem.graph, problem.costs, supernode_of_op, len(supernodes))
  offsets, others = plain_grouping.neighbours(producers, consumers, len(supernodes))
  assert tables.neighbour_offsets.tolist() == offsets.tolist()
  assert tables.neighbours.tolist() == others.tolist()


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(2, 60))
@examples(60)
def test_placed_supernodes_are_the_groups_of_devices_that_each_have_a_copy_of_all(seed, count):
  problem = random_problem(num_ops=60, seed=seed % 10)
  placement = np.random.default_rng(seed).integers(0, problem.num_devices, 60).astype(np.int32)
  here = np.arange(problem.num_devices) == placement[:, None]
  allowed = (here[:, :, None] & problem.allowed_ops[:, None, :]).reshape(60, -1)
  labels = heavy_edge(problem.graph, problem.costs, allowed, count)
  found = placed_supernodes(problem, placement, count).supernode_of_op
  assert found.tolist() == np.unique(labels, return_inverse=True)[1].tolist()


def test_ops_that_must_share_a_device_and_do_not_are_an_error(make_problem):
  problem = make_problem([1.0] * 4, colocation=np.array([0, 0, 2, 3], np.int32))
  with pytest.raises(PlacementError, match="must share a device"):
    placed_supernodes(problem, np.array([0, 1, 0, 0], np.int32), 2)
