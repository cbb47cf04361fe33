"""Pins: which ops an expression names."""

import numpy as np
import pytest

from placeto_tf.clusters import pins
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import ComputationGraph

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
    ("(" * 100_000, "is not a regular expression"),
    ("a{99999999999999999999}", "is not a regular expression"),
])
def test_an_expression_that_names_nothing_is_an_error(regex, message):
  with pytest.raises(PlacementError, match=message):
    narrowed((regex, "/GPU:1"))


def test_pins_that_put_an_op_on_two_devices_are_refused_whatever_their_order():
  for first, second in ("/GPU:0", "/GPU:1"), ("/GPU:1", "/GPU:0"):
    with pytest.raises(PlacementError, match=f"{first} by pin '.*', and on {second} by pin"):
      narrowed((".*", first), ("layer/a", second))
