"""Messages of loading, fetching and pinning: what each of them says to do works."""

import ast
import contextlib
import functools
import gc
import itertools
import re

import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.errors import FOR_A_SHELL
from placeto_tf.programs.shared_flags import parse_feed_shapes
from refusals import sentence

v1 = tf.compat.v1


def _graph():
  graph = tf.Graph()
  with graph.as_default():
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    mask = v1.placeholder(tf.float32, [None, None], name="mask")
    rate = v1.placeholder(tf.float32, name="rate")
    w = v1.get_variable("w", [4, 4])
    loss = tf.reduce_mean(tf.matmul(mask, tf.matmul(x, w)) * rate, name="loss")
    v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  return graph


SHAPES = {"x": (8, 4), "mask": (8, 8), "rate": ()}


def test_the_shapes_and_the_flags_that_are_shown_are_enough(monkeypatch):
  said = sentence(placeto.load_graph, _graph())
  shown = ast.literal_eval(re.search(r"give feed_shapes=(\{.*?\}) or the like", said).group(1))
  monkeypatch.setenv(FOR_A_SHELL, "1")
  said = sentence(placeto.load_graph, _graph())
  flags = parse_feed_shapes(re.findall(r"--feed_shapes=(\S+)", said))
  for shapes in (shown, {**shown, **flags}):
    assert placeto.load_graph(_graph(), feed_shapes={**shapes, "rate": ()}).num_ops


def test_the_batch_size_that_is_shown_is_enough_for_feeds_and_iterators():
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    tf.reduce_sum(x, name="sum")
  with tf.Graph().as_default() as iterated:
    data = v1.data.make_one_shot_iterator(tf.data.Dataset.range(8).batch(4))
    tf.reduce_sum(data.get_next(), name="sum")
  for each in (graph, iterated):
    said = sentence(placeto.load_graph, each.as_graph_def(), fetches=["sum:0"])
    size = int(re.search(r"batch_size=(\d+)", said).group(1))
    assert placeto.load_graph(each.as_graph_def(), fetches=["sum:0"], batch_size=size).num_ops


def test_the_op_that_is_like_the_one_asked_for_can_be_fetched():
  for wrong in ("los", "scope/loss", "trian"):
    said = sentence(placeto.load_graph, _graph(), fetches=[wrong], feed_shapes=SHAPES)
    right = re.search(r"\(there is '(.*?)'\)", said).group(1)
    assert placeto.load_graph(_graph(), fetches=[right], feed_shapes=SHAPES).fetches == (right,)


def test_one_of_the_ends_that_are_shown_can_be_fetched():
  graph = _graph()
  with graph.as_default():
    other = v1.get_variable("other", [2])
    v1.train.GradientDescentOptimizer(0.1).minimize(
        tf.reduce_sum(other), var_list=[other], name="second")
  graph = graph.as_graph_def()  # without the collection train_op
  said = sentence(placeto.load_graph, graph, feed_shapes=SHAPES)
  for name in re.findall(r"'(\w+)'", said):
    assert placeto.load_graph(graph, fetches=[name], feed_shapes=SHAPES).fetches == (name,)


def test_the_format_that_is_shown_reads_the_file(tmp_path):
  with _graph().as_default():
    meta_graph = v1.train.export_meta_graph()
  for name in ("graph.bin", "graph.pb"):
    (tmp_path / name).write_bytes(meta_graph.SerializeToString())
    said = sentence(placeto.load_graph, str(tmp_path / name), feed_shapes=SHAPES)
    format = re.findall(r"(\w+_graph_def)", said)[0]
    assert placeto.load_graph(
        str(tmp_path / name), format=format, feed_shapes=SHAPES).fetches == ("train",)


def test_pins_are_put_right_as_their_messages_say():
  options = {"max_evaluations": 5, "feed_shapes": SHAPES}
  said = sentence(placeto.place, _graph(), "cpu:2", "single", pins=(("Mat", "/CPU:0"),), **options)
  assert "give a whole name" in said
  assert placeto.place(
      _graph(), "cpu:2", "single", pins=(("Mat.*", "/CPU:0"),), **options).placement
  said = sentence(placeto.place, _graph(), "cpu:2", "single", pins=(("w", "/GPU:0"),), **options)
  device = re.search(r"expected one of (\S+),", said).group(1)
  assert placeto.place(
      _graph(), "cpu:2", "single", pins=(("w", device),), **options).placement["w"] == device
  with tf.Graph().as_default() as graph:
    tf.strings.as_string(v1.placeholder(tf.float32, [2], name="x"), name="text")
  said = sentence(
      placeto.place, graph, "k80:2", "single", pins=(("text", "/GPU:0"),), fetches=["text"])
  device = re.search(r"pin it to (\S+)", said).group(1)
  assert placeto.place(graph, "k80:2", "single", pins=(("text", device),),
                       fetches=["text"]).placement["text"] == device
  with tf.Graph().as_default() as graph, tf.device("/GPU:0"):
    tf.strings.as_string(v1.placeholder(tf.float32, [2], name="x"), name="text")
  for how, given in (("let the placement start from", {"existing_devices": "keep"}),
                     ("pin it to /CPU:0", {"allowed": {"text": ["/GPU:0"]}})):
    assert how in sentence(placeto.place, graph, "k80:2", "single", fetches=["text"], **given)
  assert placeto.place(graph, "k80:2", "single", fetches=["text"], existing_devices="start",
                       pins=(("text", "/CPU:0"),)).placement["text"] == "/CPU:0"


@pytest.mark.parametrize("looped", (False, True), ids=("branches", "loop"))
def test_a_live_function_with_two_devices_is_split_or_handed_over_as_its_graph_def(looped):
  def on(device, make, x):
    with tf.device(device):
      return make(x)

  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [4], name="x")
    if looped:
      tf.while_loop(lambda i, y: i < 3, lambda i, y: (
          i + 1, on("/CPU:1", tf.tanh, on("/CPU:0", tf.exp, y))), (0, x), name="called")
    else:  # no GPU has a kernel for texts
      tf.cond(x[0] > 0.0, lambda: on("/GPU:0", tf.strings.as_string, x),
              lambda: tf.strings.as_string(2.0 * x), name="called")
  cluster = "cpu:2" if looped else "k80:2+cpu:1"
  options = {"fetches": ["called"], "max_evaluations": 5}
  said = sentence(placeto.place, graph, cluster, **options)
  assert ("split_loops=True" if looped else "hand over the GraphDef (as_graph_def())") in said
  target, more = (graph, {"split_loops": True}) if looped else (graph.as_graph_def(), {})
  assert placeto.place(target, cluster, **options, **more).placement


@pytest.mark.parametrize("scope, remedy", (
    (lambda: tf.Graph().as_default(), "inside of a graph or tf.function"),
    (lambda: tf.distribute.MirroredStrategy(["/CPU:0"]).scope(), "of the strategy's scope")))
def test_training_is_placed_outside_of_graphs_and_scopes(scope, remedy):
  model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[4])])
  model.compile("sgd", "mse")
  options = {"batch_size": 8, "max_evaluations": 5}
  with scope():
    assert remedy in sentence(placeto.plan_training, model, "cpu:2", **options)
  assert placeto.plan_training(model, "cpu:2", **options).step_time_us


@pytest.mark.parametrize("inside", (True, False))
def test_a_step_of_a_strategy_is_placed_where_its_model_is_made_outside(inside):
  """With the optimizer inside of the scope, too, or outside, where some versions trace nothing."""
  def step_of(scope):
    with scope:
      model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[4])])
      optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9) if inside else None
    optimizer = optimizer or tf.keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function
    def step(x):
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
      variables = model.trainable_variables
      optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
      return loss

    return step

  options = {"args": (tf.ones([8, 4]),), "replicas": 2, "max_evaluations": 5}
  strategy = tf.distribute.MirroredStrategy(["/CPU:0"])
  said = sentence(placeto.plan_step, step_of(strategy.scope()), "cpu:2", **options)
  assert "make model and optimizer outside" in said
  assert placeto.plan_step(step_of(contextlib.nullcontext()), "cpu:2", **options).step_time_us


def test_functions_are_handed_over_as_their_messages_say():
  def made(keep, **options):
    variable = tf.Variable(tf.ones([4]))
    function = tf.function(lambda x: x * variable, **options)
    for size in (4, 1):
      concrete = function.get_concrete_function(tf.TensorSpec([size]))
    keep.append(variable)
    return function, concrete

  kept = []
  function, concrete = made(kept)
  assert "hand over function.get_concrete_function" in sentence(placeto.load_graph, function)
  assert placeto.load_graph(concrete).num_ops
  assert "without jit_compile=True" in sentence(
      placeto.load_graph, made(kept, jit_compile=True)[1])
  lost = made([])[1]
  gc.collect()
  graph = placeto.load_graph(lost)
  assert any("keep the object that owns it" in note for note in graph.notes)
  placed = placeto.place(graph, "cpu:1", "single").apply(lost)
  assert (placed(tf.ones([1])).numpy() == lost(tf.ones([1])).numpy()).all()
  assert not any("keep the object" in note for note in placeto.load_graph(concrete).notes)


def test_a_found_placement_takes_no_other_devices_but_a_plan_is_made_for_them():
  said = sentence(placeto.compile_step, len, placement="plan.json", device_map={})
  assert "leave out device_map; for other devices" in said and "plan_step for a cluster" in said


def test_a_subclassed_model_is_handed_over_with_a_batch_or_as_its_function():
  class Model(tf.keras.Model):
    def __init__(self):
      super().__init__()
      self.dense = tf.keras.layers.Dense(2)

    def call(self, x):
      return self.dense(x)

  model = Model()
  model.compile("sgd", "mse")
  for size, call in itertools.product((0, -2, "256"), (
      functools.partial(placeto.plan_training, model, "cpu:2"), functools.partial(
          placeto.plan_step, len, "cpu:2"), functools.partial(placeto.place, _graph(), "cpu:2"))):
    assert f"batch_size is {size!r}; expected a whole" in sentence(call, batch_size=size)
  said = sentence(placeto.plan_training, model, "cpu:2", batch_size=8, max_evaluations=5)
  assert "give data=(inputs, targets)" in said and "tf.function(model).get_concrete" in said
  assert placeto.load_graph(tf.function(model).get_concrete_function(tf.TensorSpec([8, 4]))).num_ops
  data = tf.ones([8, 4]), tf.ones([8, 2])
  assert placeto.plan_training(model, "cpu:2", data=data, max_evaluations=5).step_time_us
