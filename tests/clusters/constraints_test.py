"""Tests for placeto_tf.clusters.constraints."""

import re

import numpy as np
import pytest

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph

_HOSTED = Cluster.parse("k80:2")  # /GPU:0, /GPU:1, host /CPU:0
_MIXED = Cluster.parse("k80:1+cpu:1")


def _graph(kernels, colocation=None):
  """Ops that have kernels on the (CPU, GPU) pairs given."""
  n = len(kernels)
  fields = {} if colocation is None else {"colocation": np.array(colocation, dtype=np.int32)}
  return ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Op"] * n, [1] * n, [],
      has_kernel=np.array(kernels, dtype=bool), **fields)


def test_a_host_takes_everything_that_has_a_kernel():
  allowed = allowed_devices(_graph([(1, 1), (1, 0), (0, 1)]), _HOSTED)
  assert allowed.tolist() == [[True, True, True], [False, False, True], [True, True, False]]


def test_ordinary_cpu_takes_everything_that_has_a_kernel():
  allowed = allowed_devices(_graph([(1, 1), (1, 0), (0, 1)]), _MIXED)
  assert allowed.tolist() == [[True, True], [False, True], [True, False]]


def test_colocated_ops_follow_the_one_with_the_fewest_kernels():
  allowed = allowed_devices(_graph([(1, 1), (1, 0), (1, 1)], colocation=[0, 0, 2]), _HOSTED)
  assert allowed.tolist() == [[False, False, True], [False, False, True], [True, True, True]]


def test_device_type_that_the_graph_knows_nothing_of_takes_every_op():
  cluster = Cluster.from_json({"devices": [{"name": "/TPU:0", "type": "TPU", "memory_bytes": 1}]})
  assert allowed_devices(_graph([(0, 0)]), cluster).all()


def test_an_op_without_a_kernel_of_any_kind_is_named_and_no_device_is_asked_for():
  with pytest.raises(PlacementError, match="no kernel of any device for op 'op1'") as caught:
    allowed_devices(_graph([(1, 1), (0, 0)]), _HOSTED)
  assert "+cpu" not in str(caught.value)


def test_colocated_ops_without_a_common_kind_of_device_are_named():
  with pytest.raises(PlacementError, match="'op1' .* and 'op2' .* must share a device"):
    allowed_devices(_graph([(1, 1), (1, 0), (0, 1)], colocation=[0, 0, 0]), _HOSTED)


@pytest.mark.parametrize("kernels, cluster", [((1, 0), "p100:2"), ((0, 1), "cpu:2")])
def test_the_device_that_the_message_asks_for_is_enough(kernels, cluster):
  without = Cluster.from_json({**Cluster.parse(cluster).to_json(), "devices": [
      each for each in Cluster.parse(cluster).to_json()["devices"] if not each.get("host")]})
  with pytest.raises(PlacementError) as caught:
    allowed_devices(_graph([kernels]), without)
  remedy = re.search(r"such as (\S+)", str(caught.value)).group(1)
  named = f"{cluster}{remedy}" if remedy.startswith("+") else remedy
  assert allowed_devices(_graph([kernels]), Cluster.parse(named)).any()
