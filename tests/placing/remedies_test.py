"""Messages of loading, fetching and pinning: what each of them says to do works."""

import ast
import re

import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.errors import PlacetoError
from placeto_tf.placing import reports
from placeto_tf.programs.shared_flags import parse_feed_shapes

v1 = tf.compat.v1


def _said(call, *arguments, **options):
  """The message of an error of the package, in one line."""
  with pytest.raises(PlacetoError) as caught:
    call(*arguments, **options)
  assert "\n" not in str(caught.value)
  return str(caught.value)


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


def test_the_shapes_and_the_flags_that_are_shown_are_enough():
  said = _said(placeto.load_graph, _graph())
  shown = ast.literal_eval(re.search(r"give feed_shapes=(\{.*?\}) or the like", said).group(1))
  flags = parse_feed_shapes(re.findall(r"--feed_shapes=([^ )]+)", said))
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
    said = _said(placeto.load_graph, each.as_graph_def(), fetches=["sum:0"])
    size = int(re.search(r"batch_size=(\d+)", said).group(1))
    assert placeto.load_graph(each.as_graph_def(), fetches=["sum:0"], batch_size=size).num_ops


def test_the_op_that_is_like_the_one_asked_for_can_be_fetched():
  for wrong in ("los", "scope/loss", "trian"):
    said = _said(placeto.load_graph, _graph(), fetches=[wrong], feed_shapes=SHAPES)
    right = re.search(r"\(there is '(.*?)'\)", said).group(1)
    assert placeto.load_graph(_graph(), fetches=[right], feed_shapes=SHAPES).fetches == (right,)


def test_one_of_the_ends_that_are_shown_can_be_fetched():
  graph = _graph()
  with graph.as_default():
    other = v1.get_variable("other", [2])
    v1.train.GradientDescentOptimizer(0.1).minimize(
        tf.reduce_sum(other), var_list=[other], name="second")
  graph = graph.as_graph_def()  # without the collection train_op
  said = _said(placeto.load_graph, graph, feed_shapes=SHAPES)
  for name in re.findall(r"'(\w+)'", said):
    assert placeto.load_graph(graph, fetches=[name], feed_shapes=SHAPES).fetches == (name,)


def test_the_format_that_is_shown_reads_the_file(tmp_path):
  with _graph().as_default():
    meta_graph = v1.train.export_meta_graph()
  for name in ("graph.bin", "graph.pb"):
    (tmp_path / name).write_bytes(meta_graph.SerializeToString())
    said = _said(placeto.load_graph, str(tmp_path / name), feed_shapes=SHAPES)
    format = re.findall(r"(\w+_graph_def)", said)[0]
    assert placeto.load_graph(
        str(tmp_path / name), format=format, feed_shapes=SHAPES).fetches == ("train",)


def test_pins_are_put_right_as_their_messages_say():
  options = {"max_evaluations": 5, "feed_shapes": SHAPES}
  said = _said(placeto.place, _graph(), "cpu:2", "single", pins=(("Mat", "/CPU:0"),), **options)
  assert "must match a whole name" in said
  assert placeto.place(
      _graph(), "cpu:2", "single", pins=(("Mat.*", "/CPU:0"),), **options).placement
  said = _said(placeto.place, _graph(), "cpu:2", "single", pins=(("w", "/GPU:0"),), **options)
  device = re.search(r"expected one of (\S+),", said).group(1)
  assert placeto.place(
      _graph(), "cpu:2", "single", pins=(("w", device),), **options).placement["w"] == device
  with tf.Graph().as_default() as graph:
    tf.strings.as_string(v1.placeholder(tf.float32, [2], name="x"), name="text")
  said = _said(
      placeto.place, graph, "k80:2", "single", pins=(("text", "/GPU:0"),), fetches=["text"])
  device = re.search(r"pin it to (\S+)", said).group(1)
  assert placeto.place(graph, "k80:2", "single", pins=(("text", device),),
                       fetches=["text"]).placement["text"] == device


def test_the_step_of_a_function_is_told_by_what_it_computes():
  weights = [tf.Variable(tf.ones([4, 4])) for _ in range(6)]

  @tf.function(input_signature=[tf.TensorSpec([2, 4])])
  def step(x):
    for each in weights:
      each.assign_sub(tf.matmul(x, x, transpose_a=True))
    return tf.tanh(x, name="result")

  assert reports.step_line(placeto.load_graph(step)).startswith(
      "A step computes result:0 and runs 6 ops for their effects, such as AssignSubVariableOp")
