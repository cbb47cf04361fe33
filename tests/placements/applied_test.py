import pathlib

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf as placeto
import subprograms
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import load_graph
from placeto_tf.placements.applied import devices_now

_PROGRAM = pathlib.Path(__file__).with_name("live_devices.py")


@pytest.fixture(scope="module", name="found")
def found_fixture():
  """What `live_devices.py` saw on two CPU devices."""
  return subprograms.run(_PROGRAM)


def test_what_is_promised_is_what_runs(found):
  case = found["promise"]
  assert case["promised"] < 0.9 * case["single"]
  assert case["simulated"] == case["read_again"] == case["promised"] and case["kept"]
  assert case["before"] >= case["promised"] and case["equal"]
  assert case["moved"] > case["slots_moved"] > 0
  assert "were predicted" in case["report"] and "before" in case["report"]


def test_what_cannot_move_is_planned_with_and_is_said(found):
  case = found["fixed"]
  assert set(case["devices"]) == {"CPU:0"} and case["rows"] == 1
  assert case["simulated"] == case["promised"]
  assert any("tf.data pipeline" in note for note in case["notes"])


def test_devices_that_variables_were_given_are_the_graph_s_own(found):
  device, _, assigned = found["kept"]
  assert device == assigned == "CPU:1"


def _placed():
  function = tf.function(lambda x: tf.tanh(x) + 1.0).get_concrete_function(tf.TensorSpec([2]))
  return function, placeto.place(function, "cpu:1", method="single")


def test_a_function_with_one_trace_is_applied_to_as_well():
  function = tf.function(lambda x: x * 2.0)
  function(tf.ones([2]))
  result = placeto.place(function, "cpu:1", method="single")
  np.testing.assert_array_equal(result.apply(function)(tf.ones([2])), [2.0, 2.0])
  np.testing.assert_array_equal(result.placement.apply(function)(tf.ones([2])), [2.0, 2.0])


def test_another_graph_than_that_of_the_function_is_refused():
  function, result = _placed()
  other = tf.function(lambda x: tf.exp(x)).get_concrete_function(tf.TensorSpec([2]))
  placed = result.apply(function).function
  with pytest.raises(PlacementError, match="has no op"):
    devices_now(placed, load_graph(other), result.cluster)
  with pytest.raises(PlacementError, match="is on ''"):
    devices_now(function, result.graph, result.cluster)
