"""What of a graph is loaded: fetches, feeds, shapes, devices."""

import re

import numpy as np
import pytest
import tensorflow as tf

import graph_files
from placeto_tf.errors import GraphError
from placeto_tf.graphs import analysis_graph_def, load_graph, shapes

v1 = tf.compat.v1


def edges(graph):
  names = graph.op_names
  return {(names[producer], port, names[consumer]) for producer, port, consumer in graph.edges}


def test_the_train_op_is_what_is_run_and_initialisers_and_savers_are_pruned(training_graph):
  graph = load_graph(training_graph.meta_graph, batch_size=32)
  assert graph.fetches == ("train",)
  assert graph.feeds == ("x:0",)
  assert "train/update_w/ResourceApplyMomentum" in graph.op_names
  assert not [name for name in graph.op_names if name.startswith("save/") or "Assign" in name]
  assert not graph.fetched_outputs.any()
  assert graph.source.feed_shapes == {"x:0": (32, 8)}
  assert graph.source.proto is training_graph.meta_graph


def test_ops_stay_in_the_order_of_the_file_and_edges_are_the_inputs(training_graph):
  graph = load_graph(training_graph.meta_graph, batch_size=32)
  nodes = training_graph.meta_graph.graph_def.node
  kept = set(graph.op_names)
  assert list(graph.op_names) == [node.name for node in nodes if node.name in kept]
  expected = set()
  for node in nodes:
    for text in node.input if node.name in kept else ():
      if text.startswith("^"):
        expected.add((text[1:], -1, node.name))
      else:
        name, _, port = text.partition(":")
        expected.add((name, int(port or 0), node.name))
  assert edges(graph) == expected


def test_fetched_tensors_live_to_the_end(training_graph):
  graph = load_graph(training_graph.meta_graph, fetches=["loss:0", "y"], batch_size=32)
  fetched = np.flatnonzero(graph.fetched_outputs)
  assert fetched.tolist() == [graph.output_offsets[graph.op_index["loss"]]]
  assert "train" not in graph.op_names


def test_without_a_collection_the_train_op_is_what_applies_all_gradients(training_graph):
  for source in (training_graph.meta_graph, training_graph.meta_graph.graph_def):
    if source is training_graph.meta_graph:
      del source.collection_def["train_op"]
    graph = load_graph(source, batch_size=32)
    assert graph.fetches == ("train",)
    assert "taken as the step is 'train', which applies gradients" in graph.notes[0]


def _two_optimizers(*names):
  """A GraphDef in which each of these ops applies the gradients of a variable of its own."""
  with tf.Graph().as_default() as graph:
    for name in names:
      variable = v1.get_variable(f"{name}_variable", [2], use_resource=True)
      v1.train.GradientDescentOptimizer(0.1).minimize(
          tf.reduce_sum(variable), var_list=[variable], name=name)
  return graph


def test_a_graph_with_two_train_ops_is_refused_with_their_names():
  graph_def = _two_optimizers("generator", "discriminator").as_graph_def()
  with pytest.raises(GraphError, match="no single op waits .*'generator', 'discriminator'"):
    load_graph(graph_def)
  assert load_graph(graph_def, fetches=["generator"]).fetches == ("generator",)


def test_of_several_ends_that_wait_for_all_updates_the_one_called_train_is_the_step():
  graph = _two_optimizers("first", "second")
  with graph.as_default():
    with tf.control_dependencies(["first", "second"]):
      tf.no_op("train_op")
      tf.no_op("report")
  assert load_graph(graph.as_graph_def()).fetches == ("train_op",)
  with graph.as_default(), tf.control_dependencies(["first", "second"]):
    tf.no_op("train")
  with pytest.raises(GraphError, match="several ops wait .*'train_op', 'train'"):
    load_graph(graph.as_graph_def())


def test_without_a_train_op_the_ends_are_run_but_no_saver_or_initialiser():
  with tf.Graph().as_default():
    variable = v1.get_variable("variable", [2], use_resource=True)
    tf.reduce_sum(variable, name="loss")
    with tf.control_dependencies([variable.assign_sub([1.0, 1.0], read_value=False)]):
      tf.no_op("update")
    v1.global_variables_initializer()
    meta_graph = v1.train.export_meta_graph(saver_def=v1.train.Saver().as_saver_def())
  graph = load_graph(meta_graph)
  assert set(graph.fetches) == {"loss:0", "update"}
  assert not [name for name in graph.op_names if name.startswith("save/") or name == "init"]
  assert "nobody consumes" in graph.notes[0]


def test_a_feed_cuts_the_graph_and_takes_its_shape_from_the_user(training_graph):
  graph = load_graph(
      training_graph.meta_graph, fetches=["loss:0"], feeds=["y:0"], feed_shapes={"y": (3, 4)})
  assert set(graph.op_names) == {"y", "mul", "Const", "loss"}
  assert graph.feeds == ("y:0",)
  node = next(n for n in analysis_graph_def(graph).node if n.name == "y")
  assert node.op == "Placeholder" and not node.input
  assert [dim.size for dim in node.attr["shape"].shape.dim] == [3, 4]


def test_a_placeholder_with_a_default_is_fed_where_a_size_is_given_for_it():
  with tf.Graph().as_default() as tf_graph:
    default = tf.zeros([2, 3], name="default")
    x = tf.compat.v1.placeholder_with_default(default, [None, 3], name="x")
    keep = tf.compat.v1.placeholder_with_default(0.5, [], name="keep")
    tf.multiply(x, keep, name="out")
  graph_def = tf_graph.as_graph_def()
  without = load_graph(graph_def, fetches=["out"])
  assert without.feeds == () and "default" in without.op_names
  for options in (dict(batch_size=32), dict(feed_shapes={"x": (32, 3)})):
    graph = load_graph(graph_def, fetches=["out"], **options)
    assert graph.source.feed_shapes == {"x:0": (32, 3)} and graph.notes == ()
    assert "default" not in graph.op_names and "keep/input" in graph.op_names
    node = next(n for n in analysis_graph_def(graph).node if n.name == "x")
    assert node.op == "Placeholder"
    assert [dim.size for dim in node.attr["shape"].shape.dim] == [32, 3]


def test_devices_of_the_graph_are_kept(training_graph):
  training_graph.node("y").device = "/device:GPU:1"
  graph = load_graph(training_graph.meta_graph, batch_size=32)
  assert graph.assigned_devices[graph.op_index["y"]] == "/device:GPU:1"
  assert all(not node.device for node in analysis_graph_def(graph).node)


def test_a_function_call_of_a_live_graph_is_inlined_and_stays_on_one_device():
  with tf.Graph().as_default() as tf_graph:
    tf.identity(tf.function(lambda x: 2.0 * x)(tf.constant([1.0, 2.0])), name="out")
  live = load_graph(tf_graph, fetches=["out:0"])
  assert len({live.colocation[i] for i, name in enumerate(live.op_names) if "Call" in name}) == 1
  assert any("share a device" in note for note in live.notes)
  inlined = load_graph(tf_graph.as_graph_def(), fetches=["out:0"])
  assert "Mul" in live.op_types and live.op_types == inlined.op_types and not inlined.notes


@pytest.mark.parametrize("producer", [8, 21, 22])
def test_an_empty_shape_of_a_placeholder_means_what_tensorflow_takes_it_for(producer):
  with tf.Graph().as_default() as tf_graph:
    tf.identity(v1.placeholder(tf.float32, [], name="x"), name="y")
  graph_def = tf_graph.as_graph_def()
  graph_def.versions.producer = producer
  with tf.Graph().as_default() as imported:
    tf.import_graph_def(graph_def, name="")
  if imported.get_tensor_by_name("x:0").shape.rank == 0:
    assert load_graph(graph_def, fetches=["y"]).source.feed_shapes == {"x:0": ()}
    return
  with pytest.raises(GraphError, match="unknown rank"):
    load_graph(graph_def, fetches=["y"])
  given = load_graph(graph_def, fetches=["y"], feed_shapes={"x": (2, 3)})
  assert given.source.feed_shapes == {"x:0": (2, 3)}


def test_the_analysis_graph_is_one_that_tensorflow_imports(training_graph):
  training_graph.node("y").attr["_class"].list.s.append(b"loc:@b")
  graph = load_graph(training_graph.meta_graph, batch_size=32)
  graph_def = analysis_graph_def(graph)
  assert tuple(node.name for node in graph_def.node) == graph.op_names
  imported = graph_files.imported(graph_def)
  assert imported.get_tensor_by_name("x:0").shape.as_list() == [32, 8]
  assert imported.get_tensor_by_name("y:0").shape.as_list() == [32, 4]


def _inference(use_resource):
  """A prediction beside initializers, savers, summaries, queues, tables and iterators."""
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [8, 16], name="x")
    for i in range(3):
      x = tf.matmul(x, v1.get_variable(f"w{i}", [16, 16], use_resource=use_resource))
    tf.identity(x, name="prediction")
    v1.placeholder(tf.bool, [], name="unused")
    embeddings = v1.get_variable("embeddings", [4, 4], use_resource=use_resource)
    embeddings.assign(v1.placeholder(tf.float32, [4, 4], name="loaded"))
    v1.summary.merge([v1.summary.scalar("mean", tf.reduce_mean(x)), v1.summary.histogram("x", x)])
    v1.report_uninitialized_variables().mark_used()
    iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(4))
    iterator.get_next()
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [1]), default_value=0)
    del table
    queue = v1.FIFOQueue(4, [tf.float32], shapes=[[]])
    v1.train.add_queue_runner(v1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
    tf.group(v1.global_variables_initializer(), v1.local_variables_initializer(),
             v1.tables_initializer(), name="all")
    v1.train.Saver()
    v1.train.Saver(sharded=True)
  return graph


@pytest.mark.parametrize("use_resource", [False, True])
def test_the_result_of_a_graph_without_collections_is_what_it_computes(use_resource):
  graph = load_graph(_inference(use_resource).as_graph_def())
  # The batch of an iterator that nobody reads may be what a step is there for.
  assert set(graph.fetches) == {"prediction:0", "IteratorGetNext:0"}
  assert "others initialize, save, read or watch" in graph.notes[0]


def test_assignments_of_what_is_computed_are_results():
  with tf.Graph().as_default() as graph:
    state = v1.get_variable("state", [2, 4], use_resource=False)
    x = v1.placeholder(tf.float32, [2, 4], name="x")
    v1.assign(state, tf.tanh(state + x), name="step")
    v1.global_variables_initializer()
  assert load_graph(graph.as_graph_def()).fetches == ("step:0",)


def test_several_collected_train_ops_are_one_step_and_a_note_says_so():
  graph = _two_optimizers("worker_0", "worker_1")
  with graph.as_default():
    for name in ("worker_0", "worker_1"):
      v1.add_to_collection("train_op", graph.get_operation_by_name(name))
    meta_graph = v1.train.export_meta_graph()
  for source in (graph, meta_graph):
    loaded = load_graph(source)
    assert loaded.fetches == ("worker_0", "worker_1")
    assert "names 2 ops, 'worker_0', 'worker_1'" in loaded.notes[0]
    assert load_graph(source, fetches=["worker_0"]).notes == ()  # as the note says


@pytest.mark.parametrize("declared, given, batch_size, expected", [
    ((2, 3), None, None, (2, 3)), ((-1, 3), None, 8, (8, 3)), ((-1, 3), (5, 3), 8, (5, 3)),
    (None, (4,), None, (4,)), ((), None, 8, ()), ((-1, -1), (2, 3), None, (2, 3)),
])
def test_shapes_are_bound(declared, given, batch_size, expected):
  assert shapes.bind("x:0", declared, given, batch_size) == expected


@pytest.mark.parametrize("declared, batch_size, culprit", [
    (None, 8, r"unknown rank.*feed_shapes=\{'x': \(\)\}"),
    ((-1, -1), 8, r"\[8, \?\].*feed_shapes=\{'x': \(8, 32\)\}"),
    ((3, -1), None, r"feed_shapes=\{'x': \(3, 32\)\} or the like$"),
])
def test_what_stays_unknown_is_in_the_message(declared, batch_size, culprit):
  unknown = shapes.bind("x:0", declared, None, batch_size)
  assert re.search(culprit, shapes.unknown_shapes({"x:0": unknown}))


@pytest.mark.parametrize("declared, given, culprit", [
    ((-1, 3), (2, 4), r"\[\?, 3\], but \[2, 4\]"), ((2,), (2, 1), "correct")])
def test_what_contradicts_is_refused(declared, given, culprit):
  with pytest.raises(GraphError, match=culprit):
    shapes.bind("x:0", declared, given, None)


@pytest.mark.parametrize("shape", ["2x3", (2.0,), (-3,), (True,), (1 << 50,)])
def test_given_shapes_are_whole_numbers(shape):
  with pytest.raises(GraphError, match="list of whole numbers"):
    shapes.check_given(None, {"x": shape})


def test_an_unknown_format_is_refused(tmp_path):
  with pytest.raises(GraphError, match="unknown format 'onnx'"):
    load_graph(graph_files.write(graph_files.graph_def(), tmp_path / "graph.bin"), format="onnx")


def contents(training_graph, cost_graph):
  return {
      "graph_def": training_graph.meta_graph.graph_def, "meta_graph_def": training_graph.meta_graph,
      "cost_graph_def": cost_graph}


@pytest.mark.parametrize("written", ["graph_def", "meta_graph_def", "cost_graph_def"])
@pytest.mark.parametrize("read", ["graph_def", "meta_graph_def", "cost_graph_def"])
@pytest.mark.parametrize("text", [False, True])
def test_a_file_of_another_format_is_recognised(
    training_graph, cost_graph, tmp_path, written, read, text):
  proto = contents(training_graph, cost_graph)[written]
  path = graph_files.write(proto, tmp_path / ("graph.txt" if text else "graph.bin"))
  if written == read:
    assert load_graph(path, format=read, batch_size=2).source.format == read
  else:
    with pytest.raises(GraphError, match=f"pass format='{written}'"):
      load_graph(path, format=read, batch_size=2)
