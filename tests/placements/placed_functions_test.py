import pathlib

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf as placeto
import subprograms
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement

_PROGRAM = pathlib.Path(__file__).with_name("eager_devices.py")


@pytest.fixture(scope="module", name="found")
def found_fixture():
  """What `eager_devices.py` saw on two CPU devices."""
  return subprograms.run(_PROGRAM)


@pytest.mark.parametrize("case", ["saved_model", "moved"])
def test_results_stay_the_same_bit_for_bit(found, case):
  assert found[case]["equal"] == [True] * 4


@pytest.mark.parametrize("case", ["saved_model", "moved"])
def test_every_op_runs_where_it_is_placed(found, case):
  assert found[case]["ops"] > 200
  assert 0.3 < found[case]["share"] < 0.7
  assert found[case]["elsewhere"] == [] and found[case]["unseen"] == []


@pytest.mark.parametrize("case", ["saved_model", "of_tf1"])
def test_variables_of_a_loaded_model_are_on_their_devices(found, case):
  assert found[case]["check"] == [] and found[case]["variables"] == found[case]["wanted"]
  assert "CPU:1" in found[case]["wanted"].values()


def test_variables_move_to_where_they_are_placed_and_stay_the_model_s_own(found):
  case = found["moved"]
  assert set(case["moved"]) == {name for name, where in case["variables"].items()
                                if where == "CPU:1"}
  assert case["moved"] and case["variables"].items() <= case["wanted"].items()
  assert case["model_count"] == 4.0 and case["same_values"]
  assert "moved there" in case["report"]


def test_a_placed_function_is_read_as_the_graph_it_was_made_from_with_its_devices(found):
  case = found["moved"]
  assert case["read_again"] and case["devices_again"] == case["wanted_devices"]


def test_the_original_can_be_traced_again_and_has_the_same_variables(found):
  assert found["moved"]["again"] == [True]


def test_what_used_a_variable_before_it_moved_goes_on_with_it(found):
  case = found["others"]
  assert case["device"] == "CPU:1"
  assert case["reader"] == case["variable"] == [2.0, 4.0]
  assert case["doubled"] == case["restored"] == [8.0, 16.0]
  assert case["gradient"] == [16.0, 32.0]


def test_what_cannot_move_is_planned_with_and_refused_elsewhere(found):
  case = found["fixed"]
  assert len(case["fixed"]) == 2 and all("CPU:0" in device for device in case["fixed"])
  assert "not a variable" in case["notes"][0] and "tf.data pipeline" in case["notes"][0]
  assert case["moved"] == ["scale"]
  assert case["result"] == [7.0, 1.0] and case["piped"] == [3.0, 4.0]
  assert "cannot be moved" in case["error"] and "place the function again" in case["error"]
  assert case["planned"] == ["/CPU:0"] and any("tf.data pipeline" in note for note in case["said"])


def test_ops_colocated_with_a_captured_variable_are_placed(found):
  assert found["embedding"] == [True, True]


def test_who_keeps_the_handle_of_a_moved_variable_is_told(found):
  assert len(found["held"]) == 1 and "kept" in found["held"][0]


def test_devices_that_variables_were_given_are_the_graph_s_own(found):
  device, _, assigned = found["kept"]
  assert device == assigned == "CPU:1"


def test_another_graph_than_that_of_the_function_is_refused():
  function = tf.function(lambda x: tf.tanh(x) + 1.0).get_concrete_function(tf.TensorSpec([2]))
  result = placeto.place(function, "cpu:1", method="single")
  other = tf.function(lambda x: tf.exp(x)).get_concrete_function(tf.TensorSpec([2]))
  with pytest.raises(PlacementError, match="is not the graph that was placed"):
    result.apply(other)
  assert result.apply(function)(tf.ones([2])).shape == [2]


def _placement(function):
  graph = load_graph(function)
  return Placement.from_indices(graph, Cluster.parse("cpu:1"), np.zeros(graph.num_ops, np.int32))


def test_applying_leaves_the_original_as_it_was():
  variable = tf.Variable(tf.ones([2]), name="added_to")
  function = tf.function(lambda x: variable.assign_add(x) * 2.0).get_concrete_function(
      tf.TensorSpec([2], tf.float32))
  before = (function.function_def.SerializeToString(deterministic=True),
            dict(function.function_type.captures), function.captured_inputs)
  _placement(function).apply(function)
  assert before[0] == function.function_def.SerializeToString(deterministic=True)
  assert before[1] == dict(function.function_type.captures)
  assert [id(tensor) for tensor in before[2]] == [id(tensor) for tensor in function.captured_inputs]
  np.testing.assert_array_equal(tf.function(lambda x: function(x))(tf.ones([2])), [4.0, 4.0])
  mapped = tf.data.Dataset.range(2).map(lambda i: function(tf.ones([2]) * tf.cast(i, tf.float32)))
  np.testing.assert_array_equal(list(mapped)[-1], [6.0, 6.0])


def test_variables_are_not_moved_to_devices_that_this_process_lacks():
  variable = tf.Variable(1.0, name="at_home")
  function = tf.function(lambda: variable * 2.0).get_concrete_function()
  elsewhere = Placement({op: "/GPU:5" for op in load_graph(function).op_names}, ("/GPU:5",))
  with pytest.raises(PlacementError, match="this process has /device:CPU:0"):
    elsewhere.apply(function)
  assert variable.device.endswith("CPU:0") and float(function()) == 2.0
