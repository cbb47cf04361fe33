"""Pins: which ops an expression names."""

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.clusters import pins
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import ComputationGraph, load_graph

NAMES = ("layer/a", "layer/b", "other", "é\udc80")


def narrowed(*pairs, names=NAMES, sets=None):
  graph = ComputationGraph.from_edges(
      names, ["Op"] * len(names), [1] * len(names), [], fetches=names[-1:])
  return pins.narrowed_by_pins(
      graph, Cluster.parse("p100:2"), np.ones((len(names), 3), bool), pins=pairs, sets=sets or {})


def test_a_pin_holds_for_ops_whose_whole_name_matches():
  allowed, said = narrowed(("layer/.*", "/GPU:1"), ("é.", "/GPU:0"))
  assert allowed.tolist() == [[False, True, False]] * 2 + [[True] * 3, [True, False, False]]
  assert said.tolist() == [True, True, False, True]


def test_a_set_of_devices_holds_for_ops_whose_whole_name_matches_and_pins_choose_within_it():
  allowed, said = narrowed(
      ("layer/a", "/CPU:0"), sets={"layer/.*": ["/GPU:1", "/CPU:0"]})
  assert allowed.tolist() == [[False, False, True], [False, True, True], [True] * 3, [True] * 3]
  assert said.tolist() == [True, True, False, False]
  with pytest.raises(PlacementError, match="'layer/a' is put on /GPU:0.*not run there; pin it to"):
    narrowed(("layer/a", "/GPU:0"), sets={"layer/.*": ["/GPU:1", "/CPU:0"]})


@pytest.mark.parametrize("regex, message", [
    ("oth", "matches none of the 4 ops"),
    ("(", "is not a regular expression"),
])
def test_an_expression_that_names_nothing_is_an_error(regex, message):
  with pytest.raises(PlacementError, match=message):
    narrowed((regex, "/GPU:1"))


def test_pins_that_put_an_op_on_two_devices_are_refused_whatever_their_order():
  for first, second in ("/GPU:0", "/GPU:1"), ("/GPU:1", "/GPU:0"):
    with pytest.raises(PlacementError, match=f"{first} by pin '.*', and on {second} by pin"):
      narrowed((".*", first), ("layer/a", second))


def test_a_pin_of_one_op_moves_a_colocated_set_whose_own_devices_disagree():
  with tf.Graph().as_default() as tf_graph, tf.device("/CPU:0"):
    variable = tf.compat.v1.get_variable("variable", [2], use_resource=True)
    with tf.device("/CPU:1"):
      value = variable.read_value()
    tf.identity(value, name="out")
    graph = load_graph(tf_graph.as_graph_def(), fetches=["out:0"])
  read = next(name for name in graph.op_names if "Read" in name)
  with pytest.raises(PlacementError, match="colocated .*; pin them to one device"):
    placeto.place(graph, "cpu:2", "single", existing_devices="keep")
  placement = placeto.place(
      graph, "cpu:2", "single", existing_devices="keep", pins=((read, "/CPU:1"),)).placement
  assert (placement["variable"], placement[read]) == ("/CPU:1", "/CPU:1")


@pytest.mark.parametrize("kept", [True, False])
def test_devices_inside_of_a_loop_are_kept_where_it_is_split(kept):
  @tf.function
  def looped(x):
    def body(i, a):
      with tf.device("/CPU:1"):
        b = tf.matmul(a, tf.eye(4), name="elsewhere")
      return i + 1, tf.tanh(b)

    with tf.device("/CPU:0"):
      return tf.while_loop(lambda i, a: i < 3, body, [0, x])[1]

  function = looped.get_concrete_function(tf.TensorSpec([4, 4]))
  options = {"existing_devices": "keep", "max_evaluations": 5}
  if not kept:
    with pytest.raises(PlacementError, match="split_loops=True .*a loop stays on one"):
      placeto.place(function, "cpu:2", "single", **options)
    return
  placement = placeto.place(function, "cpu:2", "single", split_loops=True, **options).placement
  assert {device for op, device in placement.items() if "elsewhere" in op} == {"/CPU:1"}
