"""Tests for placeto_tf.problem.host_options: for which ops a search tries the host."""

import numpy as np
import pytest

from placeto_tf.problem.candidates import best_of
from placeto_tf.problem.host_options import own_host_note

# A table whose rows are looked up, summed, and multiplied; the product's gradient updates the rows.
NAMES = ["table", "ids", "rows", "sum", "product", "gradient", "update"]
TYPES = ["VarHandleOp", "Placeholder", "ResourceGather", "Sum", "MatMul", "Mul", "ScatterSub"]
EDGES = [(0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (0, 6)]


def _recommender(make_problem, make_cluster, table_bytes, **fields):
  cluster = make_cluster(2, host=True, bandwidth=100.0, memory=1000)
  compute_us = np.ones((7, 2))
  compute_us[4, 1] = 1e6  # the product is no work for a CPU
  return make_problem(
      compute_us, EDGES, [0, 100, 1000, 100, 100, 1000, 0], cluster=cluster, op_names=NAMES,
      op_types=TYPES, persistent_bytes=[table_bytes] + [0] * 6,
      colocation=np.array([0, 1, 0, 3, 4, 5, 0], np.int32), **fields)


def test_a_table_that_leaves_room_is_not_offered_the_host(make_problem, make_cluster):
  assert not _recommender(make_problem, make_cluster, 400).allowed_ops[:, 2].any()


def test_a_large_table_and_what_is_cheaper_than_moving_its_rows_are_offered_the_host(
    make_problem, make_cluster):
  problem = _recommender(make_problem, make_cluster, 600)
  assert problem.allowed_ops[:, 2].tolist() == [True, True, True, True, False, True, True]
  assert problem.allowed_ops[:, :2].all()


def test_a_look_up_in_the_value_of_a_large_table_is_offered_the_host(make_problem, make_cluster):
  """Keras looks rows up in a read of the table: 600 bytes are read, 150 move with the look-up."""
  compute_us = np.ones((5, 2))
  compute_us[[2, 4], 1] = 1e6  # no work for a CPU
  problem = make_problem(
      compute_us, [(0, 1), (1, 3), (2, 3), (3, 4)], [0, 600, 50, 100, 100],
      cluster=make_cluster(2, host=True, bandwidth=100.0, memory=1000),
      op_types=["VarHandleOp", "ReadVariableOp", "Mul", "GatherV2", "MatMul"],
      persistent_bytes=[600, 0, 0, 0, 0], colocation=np.array([0, 0, 2, 3, 4], np.int32))
  assert problem.allowed_ops[:, 2].tolist() == [True, True, False, True, False]


def test_what_does_not_fit_is_evaluated_with_the_table_on_the_host(make_problem, make_cluster):
  problem = _recommender(make_problem, make_cluster, 5000)
  found = best_of(problem, np.zeros(7, np.int32))
  assert found[0] == 2 and found[4] == 0
  assert problem.search_log.evaluations == 2 and problem.search_log.best_fits


def test_dense_variables_are_offered_the_host_once_the_devices_are_full(
    make_problem, make_cluster):
  cluster = make_cluster(2, host=True, memory=1000)
  for held, offered in (([700, 700, 0], False), ([900, 800, 0], True), ([900, 0, 0], True)):
    problem = make_problem(
        [1.0] * 3, [(0, 2), (1, 2)], cluster=cluster, persistent_bytes=held)
    assert bool(problem.allowed_ops[0, 2]) == offered, held


@pytest.mark.parametrize("moved", [False, True])
def test_what_the_graph_has_on_the_host_is_offered_it_and_told(moved, make_problem, make_cluster):
  problem = _recommender(
      make_problem, make_cluster, 4, assigned_devices=("/CPU:0",) + ("",) * 6)
  assert problem.allowed_ops[[0, 2, 6], 2].all() and not problem.allowed_ops[4, 2]
  placement = np.array([2, 2, 2, 0, 0, 0, 2]) * (not moved)
  note = own_host_note(problem.graph, problem.cluster, problem.costs, placement)
  assert note.startswith("the graph has 1 op on the host, such as 'table'; the placement ")
  assert ("moves 1 of them" in note) == moved and ("leaves them there" in note) == (not moved)
