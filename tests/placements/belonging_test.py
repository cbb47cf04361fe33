"""Whether a placement belongs to a graph, and says the truth."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf import graphs
from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs, look
from placeto_tf.errors import PlacementError
from placeto_tf.placements import Placement
from placeto_tf.simulation import Simulator

CLUSTER = Cluster.parse("k80:2")


def _graph(width=64, batch=8, more=0, kind="relu"):
  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [batch, 16], name="x")
    weights = v1.get_variable("weights", [16, width], use_resource=True)
    y = getattr(tf.nn, kind)(tf.matmul(x, weights, name="product"), name="activation")
    for i in range(more):
      y = tf.tanh(y, name=f"more_{i}")
    tf.reduce_sum(y, name="loss")
  return graph


def _load(**options):
  return graphs.load_graph(_graph(**options), fetches=["loss"])


def _placed(graph):
  indices = np.arange(graph.num_ops, dtype=np.int32) % 2
  result = Simulator(graph, estimate_costs(graph, CLUSTER), CLUSTER).simulate(indices)
  return Placement.from_indices(
      graph, CLUSTER, indices, method="random", seed=0, evaluations=1,
      step_time_us=float(result.step_time_us), lower_bound_us=0.1,
      peak_memory_bytes=dict(zip(CLUSTER.device_names, result.peak_memory_bytes.tolist())))


def test_the_graph_that_it_was_made_for_is_verified_also_from_another_file(tmp_path):
  placement = _placed(_load())
  path = str(tmp_path / "placement.json")
  placement.save(path)
  Placement.load(path).verify(_load(), CLUSTER)


def test_a_placement_is_verified_with_the_costs_that_it_was_made_with_of_a_look_or_of_none():
  with tf.Graph().as_default() as source:
    x = tf.compat.v1.placeholder(tf.float32, [4], name="x")
    tf.identity(tf.while_loop(
        lambda a: tf.reduce_sum(a) < 100.0, lambda a: a * 2.0, [x + 1.0]), name="loss")
  graph = graphs.load_graph(source, fetches=["loss"])
  made = []
  for mode in ("yes", "no"):
    with look.looking(mode):
      made.append(_placed(graph))
  assert made[0].step_time_us != made[1].step_time_us
  for each in made:
    each.verify(graph, CLUSTER)


@pytest.mark.parametrize("options, said", [
    ({"width": 2048}, "'weights' is [16, 2048], not [16, 64]"),
    ({"batch": None}, "'x' is [?, 16], not [8, 16]"),
    ({"more": 1}, "it adds 'more_0'"), ({"more": 3}, "it adds 'more_0', 'more_1', 'more_2'"),
    ({"kind": "elu"}, "its ops have the same names, but other types or inputs"),
])
def test_another_graph_is_an_error_that_says_what_differs(options, said):
  placement, other = _placed(_load()), graphs.load_graph(
      _graph(**options), fetches=["loss"], feed_shapes={"x": (8, 16)})
  for use in (placement.indices, placement.verify):
    with pytest.raises(PlacementError) as caught:
      use(other, CLUSTER)
    assert said in str(caught.value) and "any_graph" in str(caught.value)


def test_applying_to_other_shapes_is_an_error_unless_it_is_allowed():
  placement = _placed(_load())
  wide = _graph(width=2048)
  for target in (wide, wide.as_graph_def()):
    with pytest.raises(PlacementError, match=r"'weights' is \[16, 2048\], not \[16, 64\]"):
      placement.apply(target)
  assert not any(op.device for op in wide.get_operations())
  placement.apply(wide, any_graph=True)
  assert all(op.device for op in wide.get_operations())
  placement.apply(_graph())


@pytest.mark.parametrize("changes, said", [
    ({"step_time_us": 1.0}, "step_time_us is"),
    ({"peak_memory_bytes": {"/GPU:0": 1.0, "/GPU:1": 2.0, "/CPU:0": 0.0}}, "peak_memory_bytes of"),
    ({"fingerprint": "0" * 32}, "made for another graph"),
    ({"fetches": ("x",)}, "a step that runs 'x'"),
    ({"shapes": {"x": (9, 16)}}, "'x' is [8, 16], not [9, 16]"),
    ({"step_time_us": None}, "not None as the placement says"),
])
def test_what_does_not_come_out_again_is_named(changes, said):
  graph = _load()
  with pytest.raises(PlacementError) as caught:
    dataclasses.replace(_placed(graph), **changes).verify(graph, CLUSTER)
  assert said in str(caught.value)
