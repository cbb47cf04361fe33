"""Each fault ends in a GraphError that names the culprit, in one line."""

import re

import numpy as np
import pytest
import tensorflow as tf

import graph_files
import placeto_tf as placeto
from placeto_tf.errors import CostError, GraphError
from placeto_tf.graphs import load_graph


def unknown_function(g):
  node = g.meta_graph.graph_def.node.add(name="call", op="PartitionedCall", input=["y"])
  node.attr["Tin"].list.type.append(1)
  node.attr["Tout"].list.type.append(1)
  node.attr["f"].func.name = "no_such_function"


@pytest.mark.parametrize("fault, culprit", [
    (lambda g: setattr(g.node("y"), "op", "NoSuchOp"), "'NoSuchOp'"),
    (lambda g: g.node("y").input.__setitem__(0, "nowhere"), "'nowhere'"),
    (lambda g: g.node("y").input.__setitem__(0, "MatMul:1"), "output 1"),
    (lambda g: g.meta_graph.graph_def.node.append(g.node("y")), "'y' appears twice"),
    (lambda g: g.node("y").attr.__delitem__("T"), "lacks the attribute 'T'"),
    (lambda g: g.node("y").input.pop(), "has 1 data inputs, expected 2"),
    (unknown_function, "'no_such_function'")])
def test_a_fault_in_the_graph_is_named(training_graph, fault, culprit):
  fault(training_graph)
  with pytest.raises(GraphError) as raised:
    load_graph(training_graph.meta_graph, batch_size=32)
  assert culprit in str(raised.value)
  assert "\n" not in str(raised.value)


def test_a_fault_that_tensorflow_alone_sees_is_a_sentence_of_the_analysis(training_graph):
  for dim in training_graph.node("x").attr["shape"].shape.dim:
    dim.size = 1 << 40
  with pytest.raises(CostError, match="Shape .* is too large") as raised:
    placeto.place(load_graph(training_graph.meta_graph, batch_size=32), "cpu:1", "single")
  assert "\n" not in str(raised.value)


@pytest.mark.parametrize("arguments, culprit", [
    (dict(fetches=["nope"]), "fetch 'nope'"), (dict(fetches=["y:3"]), "output 3"),
    (dict(fetches=[]), "list of fetches is empty"),
    (dict(feeds=["nope:0"]), "feed 'nope:0'"), (dict(feeds=["train"]), "no output"),
    (dict(format="graph_def"), "leave format out"), (dict(trip_count=-1), "trip count"),
])
def test_a_wrong_argument_is_named(training_graph, arguments, culprit):
  with pytest.raises(GraphError) as raised:
    load_graph(training_graph.meta_graph, batch_size=32, **arguments)
  assert culprit in str(raised.value)


def test_ops_of_a_functions_body_are_fed_and_fetched_as_their_messages_say():
  v1 = tf.compat.v1
  graph_def = v1.GraphDef()
  for name, op, inputs in (("a", "_Arg", ()), ("b", "Tanh", ("a",)), ("r", "_Retval", ("b",))):
    node = graph_def.node.add(name=name, op=op, input=inputs)
    node.attr["T"].type = 1
    if op != "Tanh":
      node.attr["index"].i = 0
  given = {"feed_shapes": {"a": (3,)}}
  with pytest.raises(GraphError, match="feed it with feeds=") as raised:
    load_graph(graph_def, **given)
  given["feeds"] = re.search(r"feeds=\['(\S+)'\]", str(raised.value)).group(1)
  with pytest.raises(GraphError, match="fetch '.*' instead") as raised:
    load_graph(graph_def, **given)
  given["fetches"] = re.search(r"fetch '(\S+)' instead", str(raised.value)).group(1)
  placed = placeto.place(load_graph(graph_def, **given), "cpu:1", "single").apply(graph_def)
  with v1.Session(graph=graph_files.imported(placed)) as session:
    found = session.run(f"{given['fetches']}:0", {given["feeds"]: np.ones(3)})
  np.testing.assert_allclose(found, np.tanh(np.ones(3)), rtol=1e-6)


@pytest.mark.parametrize("ask", [
    lambda versions, number: setattr(versions, "min_consumer", number + 1),
    lambda versions, number: versions.bad_consumers.append(number)], ids=["asks", "excludes"])
def test_a_graph_of_a_newer_tensorflow_is_read_by_it(training_graph, monkeypatch, ask):
  number = tf.version.GRAPH_DEF_VERSION
  ask(training_graph.meta_graph.graph_def.versions, number)
  with pytest.raises(GraphError, match=f"{number}.*; install a newer TensorFlow"):
    load_graph(training_graph.meta_graph, batch_size=32)
  monkeypatch.setattr(tf.version, "GRAPH_DEF_VERSION", number + 1)
  assert load_graph(training_graph.meta_graph, batch_size=32).num_ops
