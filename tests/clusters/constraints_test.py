"""Devices that ops may have: by their kernels, and by pins and sets of devices."""

import re

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.clusters import pins
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import ComputationGraph, load_graph

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
    with pytest.raises(PlacementError, match="split_loops=True: until then a loop stays on one"):
      placeto.place(function, "cpu:2", "single", **options)
    return
  placement = placeto.place(function, "cpu:2", "single", split_loops=True, **options).placement
  assert {device for op, device in placement.items() if "elsewhere" in op} == {"/CPU:1"}


def _towers(devices, keys=(3, 3), fetched="sum:0"):
  """A tower for each key, whose gradients a collective op exchanges."""
  with tf.Graph().as_default() as graph:
    found = []
    for i, key in enumerate(keys):
      with tf.device(devices[i]):
        key = tf.compat.v1.placeholder(tf.int32, [], f"key{i}") if key is None else key
        found.append(tf.raw_ops.CollectiveReduceV2(
            input=tf.ones([2]), group_size=len(keys), group_key=7, instance_key=key,
            ordering_token=[], merge_op="Add", final_op="Id", name=f"member{i}"))
    tf.add_n(found, name="sum"), tf.zeros([9], name="rest")
  return load_graph(graph.as_graph_def(), fetches=[fetched])


@pytest.mark.parametrize("devices, expected", [
    (("/cpu:1", "/cpu:0"), [1, 0]), (("/cpu:1", "/cpu:1"), [0, 1]), (("", ""), [0, 1])])
def test_members_of_a_collective_group_have_a_device_each(devices, expected):
  graph, cluster = _towers(devices), Cluster.parse("cpu:2")
  members = [graph.op_index[f"member{i}"] for i in range(2)]
  assert allowed_devices(graph, cluster)[members].nonzero()[1].tolist() == expected
  placement = placeto.place(graph, cluster, method="single").placement
  assert [placement[f"member{i}"] for i in range(2)] == [f"/CPU:{at}" for at in expected]
  assert not placeto.placements.check(graph, placement, cluster)
  assert np.count_nonzero(placement.indices(graph, cluster)) > 0
  together = placeto.Placement({op: "/CPU:1" for op in placement}, cluster.device_names)
  assert "members of one collective" in placeto.placements.check(graph, together, cluster)[0]
  for refused in (lambda: together.apply(graph.origin.proto),
                  lambda: together.indices(graph, cluster),
                  lambda: placeto.Placement.from_indices(graph, cluster, [0] * graph.num_ops),
                  lambda: placeto.place(graph, cluster, pins=[("member.*", "/CPU:1")])):
    with pytest.raises(PlacementError, match="member"):
      refused()
  # Another fetch: initializers with collectives are placed apart, too.
  rest = placeto.place(_towers(devices, fetched="rest:0"), cluster).placement
  assert [rest[f"member{i}"] for i in range(2)] == [f"/CPU:{at}" for at in expected]


def test_members_without_devices_of_their_own_are_refused():
  with pytest.raises(PlacementError, match="at least 2 such devices"):
    allowed_devices(_towers(("", "")), Cluster.parse("cpu:1"))
  with pytest.raises(PlacementError, match="set a device of the cluster for each"):
    allowed_devices(_towers(("", ""), (3, None)), Cluster.parse("cpu:2"))
  assert allowed_devices(_towers(("/cpu:0", "/cpu:1"), (3, None)), Cluster.parse("cpu:2")).any()


def test_a_name_with_a_number_that_can_be_two_layers_is_refused_with_both():
  names = ["m/dense_1/MatMul", "m/dense_1_2/MatMul"]
  assert pins.matching_ops("dense", names) == [0] and pins.matching_ops("dense_1_2", names) == [1]
  with pytest.raises(PlacementError, match="layer of the scope 'dense_1_2'") as refused:
    pins.matching_ops("dense_1", names)
  remedies = re.findall(r"'(\(.*?/\.\*)'", str(refused.value))
  assert [pins.matching_ops(each, names) for each in remedies] == [[0], [1]]
