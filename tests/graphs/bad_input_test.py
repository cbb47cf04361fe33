"""Each fault ends in a GraphError that names the culprit, in one line."""

import random

import pytest

from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph


def unknown_op(g):
  g.node("y").op = "NoSuchOp"


def dangling_input(g):
  g.node("y").input[0] = "nowhere"


def port_out_of_range(g):
  g.node("y").input[0] = "MatMul:1"


def wrong_type(g):
  g.node("y").input[0] = "w"


def duplicate_name(g):
  g.meta_graph.graph_def.node.add().CopyFrom(g.node("y"))


def cycle(g):
  g.node("MatMul").input.append("^loss")


def missing_attribute(g):
  del g.node("y").attr["T"]


def attribute_of_another_kind(g):
  g.node("y").attr["T"].i = 1


def disallowed_type(g):
  g.node("MatMul").attr["T"].type = 7


def missing_input(g):
  del g.node("y").input[1]


def superfluous_input(g):
  g.node("y").input.append("MatMul")


def data_behind_control(g):
  g.node("y").input.insert(0, "^x")


def unknown_function(g):
  node = g.meta_graph.graph_def.node.add(name="call", op="PartitionedCall", input=["y"])
  node.attr["Tin"].list.type.append(1)
  node.attr["Tout"].list.type.append(1)
  node.attr["f"].func.name = "no_such_function"


def negative_dimension(g):
  g.node("x").attr["shape"].shape.dim[1].size = -7


def overflowing_shape(g):
  for dim in g.node("x").attr["shape"].shape.dim:
    dim.size = 1 << 40


def beyond_all_numbers(g):
  for _ in range(40):
    g.node("x").attr["shape"].shape.dim.add(size=1 << 31)


def short_constant(g):
  tensor = g.node("Const").attr["value"].tensor
  tensor.tensor_content = b"123"


def endless_outputs(g):
  node = g.meta_graph.graph_def.node.add(name="split", op="Split", input=["Const", "y"])
  node.attr["T"].type = 1
  node.attr["num_split"].i = 1 << 50


def future_version(g):
  g.meta_graph.graph_def.versions.min_consumer = 1 << 30


def empty(g):
  del g.meta_graph.graph_def.node[:]


@pytest.mark.parametrize("fault, culprit", [
    (unknown_op, "'NoSuchOp'"), (dangling_input, "'nowhere'"), (port_out_of_range, "output 1"),
    (wrong_type, "DT_RESOURCE"), (duplicate_name, "'y' appears twice"),
    (cycle, "cycle through op"), (missing_attribute, "lacks the attribute 'T'"),
    (attribute_of_another_kind, "holds i, expected type"), (disallowed_type, "DT_STRING"),
    (missing_input, "has 1 data inputs, expected 2"),
    (superfluous_input, "has 3 data inputs, expected 2"), (data_behind_control, "data inputs come"),
    (unknown_function, "'no_such_function'"), (negative_dimension, "dimension of -7"),
    (overflowing_shape, "more than TensorFlow can hold"),
    (beyond_all_numbers, "and about 1e374 elements"), (short_constant, "holds 3 bytes"),
    (endless_outputs, "'num_split'"), (future_version, "install a newer TensorFlow"),
    (empty, "is empty"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_in_the_graph_is_named(training_graph, fault, culprit):
  fault(training_graph)
  with pytest.raises(GraphError) as raised:
    load_graph(training_graph.meta_graph, batch_size=32)
  assert culprit in str(raised.value)
  assert "\n" not in str(raised.value)


def test_a_cycle_names_an_op_that_is_on_it(training_graph):
  cycle(training_graph)
  with pytest.raises(GraphError) as raised:
    load_graph(training_graph.meta_graph, batch_size=32)
  assert any(f"'{name}'" in str(raised.value) for name in ("MatMul", "y", "mul", "loss"))


@pytest.mark.parametrize("arguments, culprit", [
    (dict(fetches=["nope"]), "fetch 'nope'"), (dict(fetches=["y:3"]), "output 3"),
    (dict(fetches=[]), "list of fetches is empty"), (dict(fetches=[3]), "3 cannot be"),
    (dict(feeds=["nope:0"]), "feed 'nope:0'"), (dict(feeds=["train"]), "no output"),
    (dict(format="graph_def"), "leave format out"), (dict(trip_count=-1), "trip count"),
])
def test_a_wrong_argument_is_named(training_graph, arguments, culprit):
  with pytest.raises(GraphError) as raised:
    load_graph(training_graph.meta_graph, batch_size=32, **arguments)
  assert culprit in str(raised.value)


def test_a_fetch_with_a_known_ending_is_pointed_to(training_graph):
  with pytest.raises(GraphError, match="there is 'train/update_b/ApplyMomentum'"):
    load_graph(training_graph.meta_graph, batch_size=32, fetches=["ApplyMomentum"])


@pytest.mark.parametrize("suffix", [".pb", ".meta", ".pbtxt", ".meta.pbtxt", ".cost_graph.pb"])
def test_random_bytes_are_refused(tmp_path, suffix):
  path = tmp_path / f"graph{suffix}"
  for seed in range(20):
    path.write_bytes(random.Random(seed).randbytes(300))
    with pytest.raises(GraphError):
      load_graph(path)


def test_a_truncated_file_is_refused_or_has_lost_its_end(training_graph, tmp_path):
  content = training_graph.meta_graph.graph_def.SerializeToString(deterministic=True)
  path = tmp_path / "graph.pb"
  for length in range(0, len(content) - 200, 97):
    path.write_bytes(content[:length])
    with pytest.raises(GraphError):
      load_graph(path, fetches=["train"], batch_size=32)
