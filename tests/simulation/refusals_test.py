"""Placements and costs that do not fit the graph, and the words that say so."""

import numpy as np
import pytest
from random_cases import make_cluster, make_costs

from placeto_tf.errors import CostError, PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.simulator import Simulator

GRAPH = ComputationGraph.from_edges(["op0", "op1", "op2"], ["X"] * 3, [1] * 3, [])


def simulator(ops=3, devices=2, **fields):
  return Simulator(GRAPH, make_costs([1] * ops, [1] * ops), make_cluster(devices, **fields))


@pytest.mark.parametrize("call, error, words", [
    (lambda: simulator().simulate([0, 0]), PlacementError, "shape .2,.*each of the 3 ops"),
    (lambda: simulator().simulate([0, 2, 0]), PlacementError,
     "'op1' is on device 2; the cluster has devices 0 to 1"),
    (lambda: simulator().simulate([0.0, 1.0, 0.0]), PlacementError, "type float64; expected int32"),
    (lambda: simulator().simulate_many(np.array([[0, 0, 0], [0, 7, 0]])), PlacementError,
     "'op1' is on device 7"),
    (lambda: simulator().simulate_many(
        np.zeros((1, 3), np.int32), start_us=np.empty((1, 3), np.float32)), PlacementError,
     "start_us is float32"),
    (lambda: simulator(ops=2), CostError, "2 ops with 2 outputs, the graph has 3 with 3"),
    (lambda: simulator(kinds=2), CostError, "1 kinds of devices, the cluster has 2"),
])
def test_what_does_not_fit_is_named(call, error, words):
  with pytest.raises(error, match=words):
    call()
