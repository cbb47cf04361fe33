"""Pins: which ops an expression names."""

import numpy as np
import pytest

from placeto_tf.clusters import pins
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import ComputationGraph

NAMES = ("layer/a", "layer/b", "other", "é\udc80")


def narrowed(*pairs, names=NAMES):
  graph = ComputationGraph.from_edges(
      names, ["Op"] * len(names), [1] * len(names), [], fetches=names[-1:])
  return pins.narrowed_by_pins(
      graph, Cluster.parse("p100:2"), np.ones((len(names), 2), bool), pins=pairs)


def test_a_pin_holds_for_ops_whose_whole_name_matches():
  allowed = narrowed(("layer/.*", "/GPU:1"), ("é.", "/GPU:0"))
  assert allowed.tolist() == [[False, True], [False, True], [True, True], [True, False]]


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
