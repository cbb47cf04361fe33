import gc

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph


@pytest.fixture
def module():
  class Step(tf.Module):
    def __init__(self):
      self.weight = tf.Variable(tf.ones([4, 4]), name="weight")

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def __call__(self, x):
      with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tanh(tf.matmul(x, self.weight)))
      self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))
      return loss

    @tf.function
    def untraced(self, x):
      return x

  return Step()


def test_a_function_is_placed_with_what_it_updates(module):
  graph = load_graph(module.__call__, batch_size=3)
  assert graph.source.format == "concrete_function"
  assert graph.source.feed_shapes == {"x:0": (3, 4)}
  assert "AssignSubVariableOp" in graph.op_types
  handle = graph.op_types.index("VarHandleOp")
  assign = graph.op_types.index("AssignSubVariableOp")
  assert graph.colocation[handle] == graph.colocation[assign]


def test_a_function_without_a_trace_is_refused(module):
  with pytest.raises(GraphError, match="get_concrete_function"):
    load_graph(module.untraced)


def test_a_function_that_makes_its_variables_in_its_first_call_has_one_signature():
  variables = []

  @tf.function
  def step(x):
    if not variables:
      variables.append(tf.Variable(tf.ones([4, 4]), name="late"))
    return tf.matmul(x, variables[0])

  expected = step(tf.ones([2, 4]))
  assert len(step._list_all_concrete_functions()) == 2
  graph = load_graph(step)
  assert "AssignVariableOp" not in graph.op_types  # of the trace that makes them
  placed = placeto.place(graph, "cpu:1", "single").apply(step)
  assert np.array_equal(placed(tf.ones([2, 4])), expected)
  step(tf.ones([3, 4]))
  with pytest.raises(GraphError, match=" traces of several signatures"):
    load_graph(step)


def test_reads_of_variables_are_no_results(module):
  graph = load_graph(module.__call__.get_concrete_function(), batch_size=3)
  assert {graph.op_types[graph.op_index[name.partition(":")[0]]] for name in graph.fetches} == {
      "Identity", "AssignSubVariableOp"}


def test_a_value_that_is_known_at_the_call_is_an_argument_instead():
  x, rate = tf.ones([4]), tf.TensorSpec([])

  def late(x):
    return x * tf.compat.v1.get_default_graph().capture_call_time_value(
        lambda: tf.constant(2.0), rate)

  function = tf.function(late).get_concrete_function(x)
  with pytest.raises(GraphError, match="pass them as arguments"):
    load_graph(function)
  asked = tf.function(lambda x, rate: x * rate).get_concrete_function(x, rate)
  placed = placeto.place(asked, "cpu:1", "single").apply(asked)
  assert np.array_equal(placed(x, tf.constant(2.0)), function(x))


def test_a_signature_is_placed_without_the_loaded_model_and_its_function_after_saving(
    module, tmp_path):
  path = str(tmp_path / "model")
  tf.saved_model.save(module, path, signatures=module.__call__)
  # Saving traces the function again, with the same signature.
  assert load_graph(module.__call__, batch_size=3).source.feed_shapes == {"x:0": (3, 4)}
  served = tf.saved_model.load(path).signatures["serving_default"]
  gc.collect()
  graph = load_graph(served, batch_size=3)
  assert any("its object is gone: keep the object that owns it" in note for note in graph.notes)
  assert graph.interface_shapes[graph.op_names[graph.op_types.index("VarHandleOp")]] == (4, 4)
  placed, x = placeto.place(graph, "cpu:1", "single").apply(served), tf.ones([3, 4])
  losses = [next(iter(each(x=x).values())).numpy() for each in (served, placed, served)]
  assert losses[0] > losses[1] > losses[2]  # both train the variable of the model
  loaded = tf.saved_model.load(path)  # kept, as the note says
  assert not load_graph(loaded.signatures["serving_default"], batch_size=3).source.fixed_devices
