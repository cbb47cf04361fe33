"""Tests for placeto_tf.search.table_wise."""

import numpy as np
import pytest

from placeto_tf.placing import registry


@pytest.mark.parametrize("name, devices", [
    # Sizes 8, 6, 5, 1: 8 and 1 against 6 and 5. Look-ups 1, 2, 3, 9: 9 against 3, 2, 1.
    ("tables_by_size", [0, 1, 1, 0]), ("tables_by_lookups", [1, 1, 1, 0]),
    # Products 8, 12, 15, 9: 15 against 12; 9 joins 12; 8 joins 15.
    ("tables_by_size_x_lookups", [0, 1, 0, 1])])
def test_tables_are_dealt_out_greedily(name, devices, make_problem, make_cluster):
  """Four tables: a read, a look-up in its value, and one sum of all rows."""
  edges = [edge for t in range(0, 12, 3) for edge in ((t, t + 1), (t + 1, t + 2), (t + 2, 12))]
  sizes, lookups = (8, 6, 5, 1), (1, 2, 3, 9)
  problem = make_problem(
      np.ones(13), edges, [byte for t in range(4) for byte in (0, sizes[t], lookups[t])] + [1],
      cluster=make_cluster(2),
      op_types=["VarHandleOp", "ReadVariableOp", "GatherV2"] * 4 + ["AddN"],
      persistent_bytes=[byte for t in range(4) for byte in (sizes[t], 0, 0)] + [0],
      colocation=np.array([0, 0, 2, 3, 3, 5, 6, 6, 8, 9, 9, 11, 12], np.int32))
  found = registry.find(name).load()(problem)
  assert found[[0, 3, 6, 9]].tolist() == found[[1, 4, 7, 10]].tolist() == devices
  # Look-ups that are smaller than their table go along; the sum of all tables does not.
  assert found[[2, 5, 8]].tolist() == devices[:3] and found[12] == 0
  assert problem.search_log.evaluations == 1


def test_a_table_goes_where_there_is_room_and_its_sparse_gradient_goes_along(
    make_problem, make_cluster):
  """Tables of 60 and 30 bytes, and a dense variable of 95 on the first of two devices of 100."""
  # 0-2 are dense; then of a table: handle, look-up, slice of the joint gradient, its sum, update.
  edges = [(0, 1), (1, 2)] + [edge for t in (3, 8) for edge in (
      (t, t + 1), (t + 1, 1), (2, t + 2), (t + 2, t + 3), (t + 3, t + 4))]
  problem = make_problem(
      np.ones(13), edges, [0, 9, 40] + [0, 2, 2, 2, 0] * 2, cluster=make_cluster(2, memory=100.0),
      persistent_bytes=[95, 0, 0, 60, 0, 0, 0, 0, 30, 0, 0, 0, 0],
      op_types=["VarHandleOp", "ConcatV2", "Sum"] + [
          "VarHandleOp", "ResourceGather", "Slice", "Sum", "ResourceScatterAdd"] * 2,
      colocation=np.array([0, 1, 2, 3, 3, 5, 6, 3, 8, 8, 10, 11, 8], np.int32))
  assert registry.find("tables_by_size").load()(problem).tolist() == [0, 0, 0] + [1, 1, 0, 1, 1] * 2
