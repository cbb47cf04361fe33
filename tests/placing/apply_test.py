"""`PlacingResult.apply` gives what `place()` promised, for every kind of input."""

import numpy as np
import pytest
import tensorflow as tf

import graph_files
import placeto_tf as placeto
import sessions
from placeto_tf.clusters.constraints import own_devices
from placeto_tf.errors import GraphError, PlacementError
from placeto_tf.placing import tables
from placeto_tf.simulation import Simulator

v1 = tf.compat.v1
_BATCH = 8


def _graph():
  """A training step of two layers on batches of any size."""
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [None, 16], name="x")
    for i in range(2):
      weights = v1.get_variable(f"w{i}", [16, 16], initializer=v1.ones_initializer())
      x = tf.tanh(tf.matmul(x, weights * 0.1, name=f"product{i}"))
    loss = tf.reduce_mean(tf.square(x - 1.0), name="loss")
    v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    v1.global_variables_initializer()
  return graph


def _meta_graph():
  with _graph().as_default():
    return v1.train.export_meta_graph()


_GRAPHS = {
    "GraphDef": lambda folder: _graph().as_graph_def(),
    "MetaGraphDef": lambda folder: _meta_graph(),
    "Graph": lambda folder: _graph(),
    "path of a GraphDef": lambda folder: graph_files.write(
        _graph().as_graph_def(), folder / "graph.pb"),
    "path of a MetaGraphDef": lambda folder: graph_files.write(
        _meta_graph(), folder / "graph.meta"),
}
_WAYS = {
    "one": {}, "pinned": {"pins": (("product1", "/CPU:1"),)}, "replicas": {"replicas": 2},
    "mirrored": {"replicas": 2, "mirrored_variables": True}, "pipeline": {"replicas": "1 x 2"},
    "pinned replicas": {"replicas": 2, "mirrored_variables": False,
                        "pins": ((".*product1.*", "/CPU:1"),)},
}


def _place(source, **options):
  return placeto.place(source, "cpu:2", "auto", max_evaluations=12, **options)


def _as_graph(placed):
  """A `tf.Graph` of something placed, and the kind that it is."""
  if isinstance(placed, tf.Graph):
    return placed
  if not isinstance(placed, v1.MetaGraphDef):
    return graph_files.imported(placed)
  with tf.Graph().as_default() as graph:
    v1.train.import_meta_graph(placed)
  return graph


def _trained(graph, feed="x:0"):
  """The loss before and after a step."""
  config = sessions.unoptimized(device_count={"CPU": 2}, allow_soft_placement=False)
  values = np.random.default_rng(0).random([_BATCH, 16], np.float32)
  with v1.Session(graph=graph, config=config) as session:
    session.run("init")
    first = session.run("loss:0", {feed: values})
    session.run("train", {feed: values})
    return first, session.run("loss:0", {feed: values})


def _check_promise(result, placed, rel=1e-9, **loading):
  """Loads what `apply` returned, and simulates it with the devices that are set in it.

  Work of a part of the batch is counted anew, and was derived from the whole's for the promise.
  """
  graph = placeto.load_graph(placed, **loading)
  costs = placeto.estimate_costs(graph, result.cluster)
  found = Simulator(graph, costs, result.cluster).simulate(
      own_devices(graph, result.cluster).astype(np.int32))
  assert found.step_time_us == pytest.approx(result.step_time_us, rel=rel)


# Every kind with replicas, every way with one kind, and what a graph changes in place.
@pytest.mark.parametrize("kind, way", [
    *((kind, "replicas") for kind in _GRAPHS), *(("MetaGraphDef", way) for way in _WAYS),
    ("Graph", "pinned"), ("Graph", "mirrored"), ("path of a GraphDef", "one")])
def test_the_placed_graph_takes_the_time_that_was_promised_and_trains_the_same(
    kind, way, tmp_path):
  target = _GRAPHS[kind](tmp_path)
  result = _place(target, fetches=["train", "loss:0"], batch_size=_BATCH, check_replicas=False,
                  **_WAYS[way])
  placed = result.apply(target)
  assert isinstance(target, str) or type(placed) is type(target)
  assert (placed is target) == (kind == "Graph" and "replicas" not in _WAYS[way])
  graph = _as_graph(placed)
  products = [op.name for op in graph.get_operations() if "product0" in op.name]
  assert len([name for name in products if "grad" not in name]) >= (
      2 if "replicas" in _WAYS[way] else 1)
  _check_promise(result, graph, fetches=["train", "loss:0"], batch_size=_BATCH)
  assert _trained(graph) == pytest.approx(_trained(_graph()), rel=1e-5)
  if kind in ("MetaGraphDef", "Graph"):
    assert {op.name for op in graph.get_collection("train_op")} == {"train"}


@pytest.mark.parametrize("options", [{}, {"replicas": 2}])
def test_a_graph_can_be_applied_as_another_kind_than_it_was_read_from(options, tmp_path):
  result = _place(graph_files.write(_graph().as_graph_def(), tmp_path / "graph.pb"),
                  fetches=["train", "loss:0"], batch_size=_BATCH, check_replicas=False, **options)
  live = _place(_graph(), fetches=["train", "loss:0"], batch_size=_BATCH, check_replicas=False,
                **options)
  path = graph_files.write(_meta_graph(), tmp_path / "model.meta")
  for found, target in ((result, _graph()), (result, _graph().as_graph_def()),
                        (result, _meta_graph()), (live, path)):
    assert _trained(_as_graph(found.apply(target))) == pytest.approx(_trained(_graph()), rel=1e-5)


def _step():
  """A training step as a function, and its variable; the gradient is that of the mean."""
  weights = tf.Variable(tf.ones([16, 4]) * 0.1, name="weights")

  @tf.function(input_signature=[tf.TensorSpec([None, 16], tf.float32)])
  def step(x):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(tf.tanh(x @ weights) - 1.0))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return {"loss": loss}

  return step, weights


# This process has one CPU device: all is pinned to it, replicas included.
@pytest.mark.parametrize("kind, options", [
    ("tf.function", {}), ("tf.function", {"replicas": 2}), ("ConcreteFunction", {}),
    ("ConcreteFunction", {"replicas": 2})])
def test_a_function_is_called_with_the_whole_batch_and_trains_its_variables(kind, options):
  values = tf.constant(np.random.default_rng(0).random([_BATCH, 16], np.float32))
  (step, weights), (expected_step, expected) = _step(), _step()
  losses = [float(expected_step(values)["loss"]) for _ in range(2)]
  target = step if kind == "tf.function" else step.get_concrete_function()
  result = _place(target, batch_size=_BATCH, check_replicas=False, pins=((".*", "/CPU:0"),),
                  **options)
  applied = result.apply(target)
  _check_promise(result, applied.function, batch_size=_BATCH)
  assert [float(applied(values)["loss"]) for _ in range(2)] == pytest.approx(losses, rel=1e-5)
  assert np.allclose(weights, expected, atol=1e-6)


def test_micro_batches_of_a_function_are_refused():
  step, _ = _step()
  with pytest.raises(GraphError, match="give the number of replicas alone, or the graph"):
    _place(step, batch_size=_BATCH, replicas="1 x 2")
  assert _place(step.get_concrete_function().graph, batch_size=_BATCH, check_replicas=False,
                replicas="1 x 2").replication.chosen.micro_batches == 2  # as it says


def test_a_keras_model_gives_its_inference():
  model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])
  result = _place(model, batch_size=_BATCH, pins=((".*", "/CPU:0"),))
  values = tf.ones([_BATCH, 4])
  for target in (model, result.graph.source.tf_graph):
    applied = result.apply(target)
    assert np.allclose(tf.nest.flatten(applied(values))[0], model(values), atol=1e-6)
    _check_promise(result, applied.function, batch_size=_BATCH)


def test_a_saved_model_is_written_where_it_is_said(tmp_path):
  class Model(tf.Module):
    def __init__(self):
      self.weights = tf.Variable(tf.ones([4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([2, 4], tf.float32, name="x")])
    def serve(self, x):
      return {"y": x @ self.weights}

  model, path = Model(), str(tmp_path / "model")
  tf.saved_model.save(model, path, signatures=model.serve)
  result = _place(path, pins=((".*", "/CPU:0"),))
  with pytest.raises(PlacementError, match="out_dir="):
    result.apply(path)
  written = result.apply(path, out_dir=str(tmp_path / "placed"))
  _check_promise(result, written)
  loaded = placeto.load_placed(written)
  found = loaded.signatures["serving_default"](x=tf.ones([2, 4]))["y"]
  assert np.array_equal(found, np.full([2, 2], 4.0))
  with pytest.raises(PlacementError, match="is not the file that was placed"):
    result.apply(str(tmp_path), out_dir=str(tmp_path / "other"))


@pytest.mark.parametrize("options", [{}, {"replicas": 2}])
def test_a_spec_of_the_zoo_gives_its_graph(options):
  spec = "zoo:rnnlm:batch=4:steps=2:layers=1:hidden=8:vocab=16"
  result = _place(spec, check_replicas=False, **options)
  placed = result.apply(spec)
  assert all(node.device for node in placed.graph_def.node)
  _check_promise(result, placed, rel=1e-4)  # a spec's replica is built anew, with its own batch


def test_the_placement_of_replicas_says_what_to_call_instead():
  graph = _graph()
  result = _place(graph, fetches=["train"], batch_size=_BATCH, replicas=2, check_replicas=False)
  with pytest.raises(PlacementError, match=r"of 2 replicas.*call apply\(graph\) of the result"):
    result.placement.apply(graph.as_graph_def())
  assert _trained(_as_graph(result.apply(graph.as_graph_def())))  # as it says
  assert result.placement.apply(result.graph.source.tf_graph)


@pytest.mark.parametrize("cluster", ["k80:2", "cpu:2"])
def test_graphs_of_two_ops_are_placed_and_no_speed_up_is_made_of_times_that_no_step_takes(cluster):
  with tf.Graph().as_default() as graph:
    tf.identity(v1.placeholder(tf.float32, [4], name="x"), name="y")
  result = placeto.place(graph, cluster, fetches=["y:0"], max_evaluations=10)
  assert result.step_time_us < 1 and "x)" not in repr(result).replace("(1.00x)", "")
  assert tables.ratio(6.0, 0.003) == 6.0 and tables.ratio(0.006, 0.003) == 1.0
