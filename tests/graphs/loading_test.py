import ast
import re

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from placeto_tf.costs.estimate import work_of
from placeto_tf.errors import GraphError
from placeto_tf.graphs import analysis_graph_def, load_graph
from placeto_tf.programs.shared_flags import parse_feed_shapes

v1 = tf.compat.v1


def edges(graph):
  names = graph.op_names
  return {
      (names[producer], port, names[consumer]) for producer, port, consumer in zip(
          graph.edge_producers.tolist(), graph.edge_ports.tolist(),
          graph.edge_consumers.tolist())}


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


@pytest.mark.parametrize("suffix", [".pb", ".pbtxt", ".meta", ".meta.pbtxt"])
def test_files_of_every_format_give_the_same_graph_as_the_proto(training_graph, tmp_path, suffix):
  proto = training_graph.meta_graph if "meta" in suffix else training_graph.meta_graph.graph_def
  expected = load_graph(proto, fetches=["train"], batch_size=32)
  path = tmp_path / f"graph{suffix}"
  if suffix.endswith("txt"):
    path.write_text(text_format.MessageToString(proto))
  else:
    path.write_bytes(proto.SerializeToString())
  graph = load_graph(path, fetches=["train"], batch_size=32)
  assert graph.fingerprint == expected.fingerprint
  assert np.array_equal(graph.colocation, expected.colocation)
  assert graph.source.format == ("meta_graph_def" if "meta" in suffix else "graph_def")
  assert graph.source.text == suffix.endswith("txt")
  assert graph.source.path == str(path)


def test_a_live_graph_is_read_like_its_meta_graph(training_graph):
  graph = load_graph(training_graph.graph, batch_size=32)
  expected = load_graph(training_graph.meta_graph, batch_size=32)
  assert graph.fingerprint == expected.fingerprint
  assert graph.source.format == "tf_graph"
  assert graph.source.tf_graph is training_graph.graph


def test_the_protos_handed_over_are_not_changed(training_graph):
  before = training_graph.meta_graph.SerializeToString(deterministic=True)
  analysis_graph_def(load_graph(training_graph.meta_graph, batch_size=32))
  assert training_graph.meta_graph.SerializeToString(deterministic=True) == before


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


def test_all_feeds_of_unknown_shapes_are_named_at_once():
  with tf.Graph().as_default() as graph:
    images = v1.placeholder(tf.float32, [None, 4], name="images")
    mask = v1.placeholder(tf.float32, [None, None], name="mask")
    tf.identity(tf.matmul(mask, images), name="out")
  with pytest.raises(GraphError) as caught:
    load_graph(graph.as_graph_def(), fetches=["out"])
  assert str(caught.value) == (
      "2 placeholders have unknown dimensions: 'images:0' [?, 4], 'mask:0' [?, ?]; give "
      "feed_shapes={'images': (32, 4), 'mask': (32, 32)} or the like (--feed_shapes=images:32x4 "
      "--feed_shapes=mask:32x32), or batch_size (--batch_size) where only the first dimension is "
      "unknown")


def test_a_lookup_has_the_shape_of_its_keys_on_the_way_to_a_loops_length():
  with tf.Graph().as_default() as graph:
    keys = v1.placeholder(tf.string, [7, 3], name="keys")
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [1]), default_value=0)
    found = table.lookup(keys)
    found.set_shape([None, None])
    length = tf.shape(found)[0]
    tf.while_loop(lambda i, x: i < length, lambda i, x: (i + 1, x * 2.0),
                  [0, tf.constant(1.0)], name="loop")[1]
    graph_def = graph.as_graph_def()
  for node in graph_def.node:
    node.attr.pop("_output_shapes", None)
  # 10 rounds where nothing is known; the condition is asked once more.
  assert work_of(load_graph(graph_def), cache=False).executions.max() in (7, 8, 9)


def test_a_saved_model_directory_that_is_not_there_is_said_not_to_be_there(tmp_path):
  with pytest.raises(GraphError, match="there is no file or SavedModel directory .*nowhere"):
    load_graph(str(tmp_path / "nowhere"))


def test_a_fetch_that_is_nearly_a_name_is_answered_with_the_name(training_graph):
  with pytest.raises(GraphError, match="'trainn' names no op .*there is 'train'"):
    load_graph(training_graph.meta_graph, fetches=["trainn"], batch_size=32)


def test_without_a_train_op_the_ends_are_run_but_no_saver_or_initialiser():
  with tf.Graph().as_default():
    variable = v1.get_variable("variable", [2], use_resource=True)
    tf.reduce_sum(variable, name="loss")
    with tf.control_dependencies([variable.assign_sub([1.0, 1.0], read_value=False)]):
      tf.no_op("update")
    v1.global_variables_initializer()
    saver = v1.train.Saver()
    meta_graph = v1.train.export_meta_graph(saver_def=saver.as_saver_def())
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


def test_a_live_graph_knows_the_shape_of_what_is_fed(training_graph):
  graph = load_graph(training_graph.graph, fetches=["loss:0"], feeds=["y:0"], batch_size=5)
  assert graph.source.feed_shapes == {"y:0": (5, 4)}


def test_a_placeholder_with_a_default_is_fed_where_a_size_is_given_for_it():
  import tensorflow as tf

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


def test_a_feed_of_one_output_of_two_leaves_the_op_its_inputs():
  import tensorflow as tf

  with tf.Graph().as_default() as tf_graph:
    x = tf.compat.v1.placeholder(tf.float32, [4, 2], name="x")
    a, b = tf.split(x, 2, axis=1, name="split")
    tf.add(a, b, name="sum")
  whole = load_graph(tf_graph, fetches=["sum:0"], feeds=["split:0"])
  assert "x" in whole.op_names
  cut = load_graph(tf_graph, fetches=["sum:0"], feeds=["split:0", "split:1"])
  assert "x" not in cut.op_names


def test_feed_shapes_bind_and_are_checked_against_the_graph(training_graph):
  graph = load_graph(training_graph.meta_graph, feed_shapes={"x:0": [7, 8]})
  assert graph.source.feed_shapes == {"x:0": (7, 8)}
  with pytest.raises(GraphError, match="'x:0' has the shape"):
    load_graph(training_graph.meta_graph, feed_shapes={"x": (7, 9)})
  with pytest.raises(GraphError, match="'z', which is no op"):
    load_graph(training_graph.meta_graph, feed_shapes={"z": (7, 9)}, batch_size=2)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True])
def test_a_batch_size_that_is_none_is_refused(training_graph, batch_size):
  with pytest.raises(GraphError, match="batch size"):
    load_graph(training_graph.meta_graph, batch_size=batch_size)


def test_a_batch_size_that_binds_nothing_is_noted(chain):
  graph = load_graph(chain(3), batch_size=4)
  assert any("batch size 4 is not used" in note for note in graph.notes)


def test_devices_of_the_graph_are_kept(training_graph):
  training_graph.node("y").device = "/device:GPU:1"
  graph = load_graph(training_graph.meta_graph, batch_size=32)
  assert graph.assigned_devices[graph.op_index["y"]] == "/device:GPU:1"
  assert all(not node.device for node in analysis_graph_def(graph).node)


def test_a_function_call_of_a_live_graph_is_inlined_and_stays_on_one_device():
  import tensorflow as tf

  with tf.Graph().as_default() as tf_graph:
    double = tf.function(lambda x: 2.0 * x)
    tf.identity(double(tf.constant([1.0, 2.0])), name="out")
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
  import tensorflow as tf

  training_graph.node("y").attr["_class"].list.s.append(b"loc:@b")
  graph = load_graph(training_graph.meta_graph, batch_size=32)
  graph_def = analysis_graph_def(graph)
  assert tuple(node.name for node in graph_def.node) == graph.op_names
  with tf.Graph().as_default() as imported:
    tf.import_graph_def(graph_def, name="")
  assert imported.get_tensor_by_name("x:0").shape.as_list() == [32, 8]
  assert imported.get_tensor_by_name("y:0").shape.as_list() == [32, 4]


def test_a_chain_of_thousands_needs_no_recursion(chain):
  graph = load_graph(chain(20_000))
  assert graph.num_ops == 20_000
  assert graph.depths.max() == 19_999


@pytest.mark.parametrize("source", [None, 3, object(), b"x", []])
def test_what_is_no_graph_is_refused(source):
  with pytest.raises(GraphError, match="cannot read a graph from"):
    load_graph(source)


def _inference(use_resource):
  """A prediction beside initializers, savers, summaries, queues, tables and iterators."""
  graph = tf.Graph()
  with graph.as_default():
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


def test_what_only_initializes_is_placed_where_the_graph_does_nothing_else():
  with tf.Graph().as_default() as graph:
    v1.get_variable("w", [2], use_resource=True)
    v1.global_variables_initializer()
  assert "init" in load_graph(graph.as_graph_def()).fetches


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


def test_a_placeholder_of_unknown_rank_can_be_given_as_the_scalar_that_the_message_names():
  with tf.Graph().as_default() as graph:
    keep = v1.placeholder(tf.float32, name="keep_prob")
    tf.nn.dropout(v1.placeholder(tf.float32, [None, 4], name="x"), rate=1 - keep, name="out")
  with pytest.raises(GraphError) as caught:
    load_graph(graph.as_graph_def(), batch_size=2)
  given = re.search(r"a scalar is (\{.*?\}) \(--feed_shapes=(\S+)\)", str(caught.value))
  for shapes in (ast.literal_eval(given.group(1)), parse_feed_shapes([given.group(2)])):
    loaded = load_graph(graph.as_graph_def(), batch_size=2, feed_shapes=shapes)
    assert loaded.source.feed_shapes["keep_prob:0"] == ()
