"""Inlined graphs are compared with what TensorFlow computes from the original ones, bit by bit."""

import numpy as np
import pytest
import tensorflow as tf

import graph_files
import sessions
from placeto_tf.costs.estimate import work_of
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph, rewritten_proto
from placeto_tf.graphs.functions import CALLS, inline_functions


def build(function, shape=(2, 4)):
  """A GraphDef in which a placeholder `x` goes through a function into `out`."""
  concrete = tf.function(function).get_concrete_function(tf.TensorSpec(shape, tf.float32))
  with tf.Graph().as_default() as tf_graph:
    x = tf.compat.v1.placeholder(tf.float32, shape, name="x")
    concrete.add_to_graph(tf_graph)
    tensors = tf.raw_ops.StatefulPartitionedCall(
        args=[x], Tout=[tensor.dtype for tensor in concrete.outputs], f=concrete, name="site")
    for i, tensor in enumerate(tensors):
      tf.identity(tensor, name=f"out{i}")
  return tf_graph.as_graph_def(), [f"out{i}:0" for i in range(len(concrete.outputs))]


def run(graph_def, fetches, value, times=1):
  """What a session gives, without any optimisation of the graph."""
  v1 = tf.compat.v1
  config = sessions.unoptimized()
  config.graph_options.optimizer_options.opt_level = -1
  plain = tf.compat.v1.GraphDef()
  plain.CopyFrom(graph_def)
  # Calls carry a configuration of their own, by which sums in their functions are reordered.
  for node in (*plain.node, *(n for f in plain.library.function for n in f.node_def)):
    if node.op in CALLS:
      node.attr["config_proto"].s = config.SerializeToString()
  with v1.Session(graph=graph_files.imported(plain), config=config) as session:
    return [session.run(fetches, {"x:0": value * (k + 1)}) for k in range(times)]


def assert_same(graph_def, fetches):
  inlined, _ = inline_functions(graph_def)
  value = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
  for sign in (1, -1):
    expected = run(graph_def, fetches, sign * value, 2)
    found = run(inlined, fetches, sign * value, 2)
    for a, b in zip(expected, found):
      assert all(np.array_equal(p, q) for p, q in zip(a, b))
  return inlined


def op_types(graph_def):
  return {node.op for node in graph_def.node}


def test_the_ops_of_a_call_are_named_after_its_site():
  graph_def, fetches = build(lambda x: tf.tanh(x + 1.0))
  inlined = assert_same(graph_def, fetches)
  assert "site/Tanh" in {node.name for node in inlined.node}
  assert "StatefulPartitionedCall" not in op_types(inlined)
  graph = load_graph(graph_def, fetches=fetches)
  assert "site/Tanh" in graph.op_names and "site" not in graph.op_names
  assert graph.source.proto is graph_def
  assert rewritten_proto(graph) is graph.source.graph_def


def test_two_calls_are_two_sets_of_ops_and_calls_may_be_nested():
  inner = tf.function(lambda x: (tf.tanh(x), x * 2.0))
  graph_def, fetches = build(lambda x: inner(inner(x)[1]))
  inlined = assert_same(graph_def, fetches)
  assert sum(node.op == "Tanh" for node in inlined.node) == 2


def test_a_call_can_still_be_fetched_by_its_name():
  graph_def, _ = build(lambda x: (tf.tanh(x), x * 2.0))
  assert_same(graph_def, ["site:0", "site:1"])
  graph = load_graph(graph_def, fetches=["site:1"])
  assert graph.op_types[graph.op_index["site"]] == "IdentityN"


def test_loops_and_branches_are_lowered():
  def function(x):
    for _ in tf.range(5):
      if tf.reduce_sum(x) > 0.5:
        x = tf.tanh(x) - 0.25
      else:
        x = x * 1.5 + 0.5
    return x, tf.reduce_max(x)

  graph_def, fetches = build(function)
  inlined = assert_same(graph_def, fetches)
  assert not op_types(inlined) & {"While", "StatelessWhile", "If", "StatelessIf"}
  graph = load_graph(graph_def, fetches=fetches)
  tanh = graph.op_types.index("Tanh")
  assert work_of(graph, cache=False).executions[tanh] == 5.0
  assert (graph.colocation == graph.colocation[tanh]).sum() > 10


def train_through_loops(outer, inner):
  def function(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = x
      for _ in tf.range(outer):
        if inner:
          for _ in tf.range(inner):
            y = tf.tanh(y) * 1.1
        else:
          y = tf.tanh(y) * 1.1
      loss = tf.reduce_sum(y)
    return loss, tape.gradient(loss, x)

  return function


@pytest.mark.parametrize("outer, inner", [(3, 0), (3, 2)])
def test_loops_with_gradients_are_lowered_and_their_trips_inferred(outer, inner):
  graph_def, fetches = build(train_through_loops(outer, inner))
  assert_same(graph_def, fetches)
  graph = load_graph(graph_def, fetches=fetches)
  executions = dict(zip(graph.op_types, work_of(graph, cache=False).executions.tolist()))
  assert executions["Tanh"] == outer * max(inner, 1)
  if not inner:
    assert executions["TanhGrad"] == outer


def test_gradients_of_branches_loops_and_calls_within_each_other_stay_the_same():
  inner = tf.function(lambda x: tf.tanh(x) + tf.constant([1.0, 2.0, 3.0, 4.0]))

  def function(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      if tf.reduce_sum(x) > 0.0:
        y = tf.tanh(x)
        if tf.reduce_max(y) > 0.5:
          y = y * 2.0
        for _ in tf.range(2):
          y = tf.sin(y)
      else:
        y = x * 3.0
        for i in tf.range(4):
          if i > 2:
            break
          y = tf.cos(y) + inner(y)
      loss = tf.reduce_sum(y)
    return loss, tape.gradient(loss, x)

  assert_same(*build(function))


def test_calls_in_v1_loops_keep_their_constants_in_the_loop():
  inner = tf.function(lambda x: tf.tanh(x) + tf.constant([1.0, 2.0, 3.0, 4.0]))
  graph_def, fetches = build(lambda x: tf.while_loop(
      lambda i, _: i < 3, lambda i, h: (i + 1, inner(h)), [0, x])[1])
  lowered, _ = inline_functions(graph_def)
  graph = load_graph(lowered, fetches=fetches)  # refuses ops that mix loops
  assert work_of(graph, cache=False).executions[graph.op_types.index("Tanh")] == 3.0
  assert_same(graph_def, fetches)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_switches_of_many_ways_are_lowered_also_in_loops_and_with_gradients(count):
  def function(x):
    def chosen(index, value):
      return tf.switch_case(
          index, [lambda k=k: tf.tanh(value) * (k + 2.0) + x[0, k % 4] for k in range(count)])

    with tf.GradientTape() as tape:
      tape.watch(x)
      y = chosen(tf.cast(tf.reduce_sum(x) * 10.0, tf.int32), x)
      for i in tf.range(-1, count + 1):  # what is out of range takes the last branch
        y += chosen(i, y)
    return y, tape.gradient(y, x)

  inlined = assert_same(*build(function))
  assert not op_types(inlined) & {"Case", "StatelessCase", "While", "StatelessWhile"}


def counting(function, spec):
  """A GraphDef in which `function(x, resource)` of a placeholder may count in a variable."""
  with tf.Graph().as_default() as tf_graph:
    x = tf.compat.v1.placeholder(spec.dtype, spec.shape, name="x")
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], name="count")
    tf.raw_ops.AssignVariableOp(resource=handle, value=0.0, name="init")
    concrete = tf.function(function).get_concrete_function(spec, tf.TensorSpec([], tf.resource))
    concrete.add_to_graph(tf_graph)
    (y,) = tf.raw_ops.StatefulPartitionedCall(
        args=[x, handle], Tout=[tf.float32], f=concrete, name="site")
    tf.identity(y, name="out")
    tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")
  return tf_graph.as_graph_def()


def counted(graph_def, values):
  """What the variable holds once `out` was fetched for each of the values."""
  with tf.compat.v1.Session(graph=graph_files.imported(graph_def)) as session:
    session.run("init")
    for value in values:
      session.run("out:0", {"x:0": value})
    return float(session.run("read:0"))


def test_only_the_branch_that_is_taken_has_its_side_effects():
  def function(index, resource):
    def adds(value):
      def branch():
        tf.raw_ops.AssignAddVariableOp(resource=resource, value=value)
        return value
      return branch

    return tf.switch_case(index, [adds(1.0), adds(10.0), adds(100.0)])

  inlined, _ = inline_functions(counting(function, tf.TensorSpec([], tf.int32)))
  assert not op_types(inlined) & {"Case", "StatelessCase"}
  assert counted(inlined, (0, 1, 1, 2, -1, 7)) == 321.0


def test_side_effects_in_loops_and_branches_happen_as_often_as_before():
  def function(value, resource):
    for i in tf.range(4):
      if i > 1:
        tf.raw_ops.AssignAddVariableOp(resource=resource, value=1.0)
      else:
        tf.raw_ops.AssignAddVariableOp(resource=resource, value=10.0)
      value = value * 2.0
    return value

  graph_def = counting(function, tf.TensorSpec([2, 4]))
  for version in (graph_def, inline_functions(graph_def)[0]):
    assert counted(version, [np.ones([2, 4])]) == 22.0


def test_a_meta_graph_goes_out_inlined():
  graph_def, fetches = build(tf.tanh)
  meta_graph = tf.compat.v1.MetaGraphDef()
  meta_graph.graph_def.CopyFrom(graph_def)
  meta_graph.collection_def["mine"].node_list.value.append("x")
  graph = load_graph(meta_graph, fetches=fetches)
  proto = rewritten_proto(graph)
  assert proto is not meta_graph and "mine" in proto.collection_def
  assert set(graph.op_names) <= {node.name for node in proto.graph_def.node}


def _calls(callees, times=1):
  """A GraphDef whose op `c` calls the first of the functions; each passes its argument to another.

  A function whose callee is "" takes the tangent; each calls its callee so many times in a row.
  """
  graph_def = tf.compat.v1.GraphDef()
  x = graph_def.node.add(name="x", op="Placeholder")
  x.attr["dtype"].type = 1
  x.attr["shape"].shape.SetInParent()
  graph_def.node.add(name="c", op=next(iter(callees)), input=["x"])
  for name, callee in callees.items():
    function = graph_def.library.function.add()
    function.signature.name = name
    function.signature.input_arg.add(name="a", type=1)
    function.signature.output_arg.add(name="r", type=1)
    value = "a"
    for i in range(times):
      node = function.node_def.add(name=f"c{i}", op=callee or "Tanh", input=[value])
      if not callee:
        node.attr["T"].type = 1
      value = f"c{i}:{'r' if callee else 'y'}:0"
    function.ret["r"] = value
  return graph_def


@pytest.mark.parametrize("callees", [{"f": "f"}, {"f": "g", "g": "h", "h": "g"}])
def test_functions_that_call_themselves_are_refused(callees):
  with pytest.raises(GraphError, match="function '[fgh]' calls itself"):
    load_graph(_calls(callees))


def test_calls_may_be_nested_as_deeply_as_tensorflow_runs_them():
  graph_def = _calls({f"f{i}": f"f{i + 1}" if i < 499 else "" for i in range(500)})
  inlined, _ = inline_functions(graph_def)
  with tf.compat.v1.Session(graph=graph_files.imported(inlined)) as session:
    np.testing.assert_allclose(session.run("c:0", {"x:0": 1.0}), np.tanh(1.0), rtol=1e-6)
  assert load_graph(graph_def, fetches=["c:0"]).op_types.count("Tanh") == 1


def test_a_function_with_attributes_of_its_own_is_refused_as_by_tensorflow():
  graph_def = _calls({"f": ""})
  function = graph_def.library.function[0]
  function.signature.attr.add(name="T", type="type")
  for arg in (function.signature.input_arg[0], function.signature.output_arg[0]):
    arg.ClearField("type")
    arg.type_attr = "T"
  function.node_def[0].attr["T"].placeholder = "T"
  graph_def.node[1].attr["T"].type = 1
  with pytest.raises(GraphError, match="function 'f' has attributes of its own"):
    load_graph(graph_def)
  with pytest.raises(TypeError):
    graph_files.imported(graph_def)


def dangling(graph_def, function):
  function.node_def[0].input[0] = "nowhere:y:0"


def unknown_op(graph_def, function):
  function.node_def[0].op = "NoSuchOp"


def superfluous_argument(graph_def, function):
  node = next(node for node in graph_def.node if node.name == "site")
  node.input.append("x")
  node.attr["Tin"].list.type.append(1)


def defined_twice(graph_def, function):
  graph_def.library.function.add().CopyFrom(function)


@pytest.mark.parametrize("fault, culprit", [
    (dangling, "'nowhere:y:0'"), (unknown_op, "NoSuchOp"), (superfluous_argument, "gives 2 inputs"),
    (defined_twice, "defined twice"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_in_a_function_is_named(fault, culprit):
  graph_def, fetches = build(tf.tanh)
  fault(graph_def, graph_def.library.function[0])
  with pytest.raises(GraphError) as raised:
    load_graph(graph_def, fetches=fetches)
  assert culprit in str(raised.value)


def test_functions_that_double_for_ever_end_in_an_error():
  callees = {f"f{i}": f"f{i + 1}" if i < 29 else "" for i in range(30)}
  with pytest.raises(GraphError, match="inlining the function calls gives more than"):
    load_graph(_calls(callees, times=2))
