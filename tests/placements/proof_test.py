"""What a placement asks for is what TensorFlow does: real sessions on two CPU devices.

Soft placement and graph optimisations are off; oneDNN, which joins ops that share a device, is
turned off in tests/conftest.py. Ops are placed at random, one device for each colocation set, so
that about half of them are on either device and tensors cross everywhere.

`-m heavy` proves the other models of the zoo.
"""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

import graph_files
from placeto_tf import zoo
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import CONTROL, load_graph
from placeto_tf.graphs.computation_graph import KERNEL_TYPES
from placeto_tf.placements import Placement, check, write_placed
from placeto_tf.runtime import session as session_lib

v1 = tf.compat.v1

_STEPS = 5
# Small: a recurrent network, convolutions with batch normalization, attention, dilations.
_SPECS = (
    "rnnlm:batch=4:layers=2:steps=4:hidden=16:vocab=40:dropout=20:optimizer=adam",
    "enas_conv:batch=4:image=8:cells=3:filters=8:nodes=4:classes=30:optimizer=rmsprop",
    "gnmt:batch=2:layers=3:steps=3:hidden=8:vocab=30",
    "transformer_xl:batch=2:segment=6:memory=4:heads=2:width=8:inner=24:vocab=40:dropout=10",
    "wavenet:batch=2:layers=5:samples=40:channels=8:levels=30",
)
_MORE = (
    "nmt:batch=2:layers=2:steps=3:hidden=8:vocab=30", "inception_v3:batch=2:image=75",
    "nasnet_mobile:batch=2:image=32", "amoebanet:batch=2:cells=3:filters=16:image=32",
    "bert:batch=2:size=tiny:steps=32:vocab=40:dropout=10",
    "resnet50:batch=2:image=32",
    "enas_recurrent:batch=4:steps=3:hidden=16:vocab=40")


@functools.lru_cache(maxsize=1)  # models come one after the other; keep one alive
def _model(spec):
  model = zoo.build(spec)
  return model, load_graph(model.meta_graph_def())


def _cluster():
  return Cluster.parse("cpu:2")


def _random_placement(graph, seed):
  """[N], equal inside each colocation set."""
  return np.random.default_rng(seed).integers(0, 2, graph.num_ops, np.int32)[graph.colocation]


def _feeds(graph, seed=0):
  rng = np.random.default_rng(seed)
  dtypes = {node.name: node.attr["dtype"].type for node in graph.source.graph_def.node
            if node.op == "Placeholder"}
  return {
      name: rng.random(shape, np.float32) if dtypes[name[:-2]] == tf.float32.as_datatype_enum
      else rng.integers(0, 30, shape).astype(np.int32)
      for name, shape in graph.source.feed_shapes.items()}


def _train(tf_graph, model, feeds, num_cpus):
  """Losses of five steps, and with several devices the RunMetadata of the last."""
  losses, metadata = [], v1.RunMetadata()
  with v1.Session(graph=tf_graph, config=session_lib.session_config(num_cpus=num_cpus)) as session:
    session.run(model.init_op)
    for step in range(_STEPS):
      last = step == _STEPS - 1 and num_cpus > 1
      _, loss = session.run(
          [model.train_op, model.loss], feeds,
          options=session_lib.trace_options() if last else None,
          run_metadata=metadata if last else None)
      losses.append(loss)
  return losses, metadata


def _read(path):
  meta_graph = v1.MetaGraphDef()
  with open(path, "rb") as file:
    meta_graph.ParseFromString(file.read())
  return graph_files.imported(meta_graph.graph_def)


def _part(name):
  """Which part of a training step an op of the zoo belongs to, by its name."""
  if name.startswith("optimizer/gradients/"):
    return "gradient"
  return "optimizer" if name.startswith("optimizer/") else "forward"


def _parts_cut(graph, indices):
  """Part -> share of its data edges that cross devices; an edge belongs to its consumer's part."""
  crossing, total = collections.Counter(), collections.Counter()
  for producer, port, consumer in graph.edges:
    if port != CONTROL:
      part = _part(graph.op_names[consumer])
      total[part] += 1
      crossing[part] += indices[producer] != indices[consumer]
  return {part: crossing[part] / total[part] for part in total}


def _device(placement, op):
  return placement[op].replace("/CPU", "/device:CPU")


def _unaccounted(graph, placement, metadata):
  """Ops of the graph that ran elsewhere, and those that did not run and should have."""
  executed = session_lib.executed_devices(metadata)
  partitioned = session_lib.partitioned_devices(metadata)
  elsewhere, idle = [], []
  for op, op_type in zip(graph.op_names, graph.op_types):
    wanted = {_device(placement, op)}
    if op in executed:
      if executed[op] != wanted or partitioned[op] != wanted:
        elsewhere.append(op)
    elif op in partitioned:
      idle.append(op)
    elif op_type == "Placeholder":
      pass  # fed: an _Arg takes its place
    elif op_type == "Const" and any(
        name.startswith(f"{op}/replicate/") for name in partitioned):
      pass  # newer TensorFlow copies small constants to each device that reads them
    else:
      idle.append(op)
  return elsewhere, idle


@pytest.mark.parametrize("spec", [
    *_SPECS, *(pytest.param(spec, marks=pytest.mark.heavy) for spec in _MORE)])
def test_ops_run_where_a_random_placement_puts_them_and_losses_do_not_change(spec, tmp_path):
  model, graph = _model(spec)
  feeds = _feeds(graph)
  assert not session_lib.swaps_kernels()
  indices = _random_placement(graph, seed=1)
  placement = Placement.from_indices(graph, _cluster(), indices)
  # The placement is a hard one: both devices are full, and all parts of a step are cut.
  assert graph.has_kernel[:, KERNEL_TYPES.index("CPU")].all()
  assert np.bincount(indices, minlength=2).min() >= 0.3 * graph.num_ops
  cut = _parts_cut(graph, indices)
  assert set(cut) == {"forward", "gradient", "optimizer"}
  assert min(cut.values()) > 0.1, cut

  losses, metadata = _train(
      _read(write_placed(graph, placement, str(tmp_path))), model, feeds, num_cpus=2)

  assert _unaccounted(graph, placement, metadata) == ([], [])
  expected, _ = _train(model.graph, model, feeds, num_cpus=1)
  assert len(set(expected)) == _STEPS  # training goes on, so equality is no accident
  np.testing.assert_array_equal(losses, expected)


def test_the_proof_notices_an_op_that_ran_elsewhere():
  model, graph = _model(_SPECS[0])
  indices = _random_placement(graph, seed=2)
  placement = Placement.from_indices(graph, _cluster(), indices)
  tf_graph = graph_files.imported(placement.apply(graph.source.proto).graph_def)
  _, metadata = _train(tf_graph, model, _feeds(graph), num_cpus=2)
  moved = indices.copy()
  members = graph.colocation == graph.colocation[graph.op_index["softmax/kernel"]]
  moved[members] = 1 - moved[members]
  elsewhere, idle = _unaccounted(graph, Placement.from_indices(graph, _cluster(), moved), metadata)
  assert set(elsewhere) == {graph.op_names[i] for i in np.flatnonzero(members)} and not idle


def test_a_live_graph_is_placed_in_place():
  built = zoo.build(_SPECS[0])
  graph = load_graph(built.graph)
  placement = Placement.from_indices(graph, _cluster(), _random_placement(graph, seed=3))
  expected, _ = _train(
      graph_files.imported(built.graph.as_graph_def()), built, _feeds(graph), num_cpus=1)
  assert placement.apply(built.graph) is built.graph
  losses, metadata = _train(built.graph, built, _feeds(graph), num_cpus=2)
  assert _unaccounted(graph, placement, metadata) == ([], [])
  np.testing.assert_array_equal(losses, expected)


def _v1_program():
  """Reference variables, a v1 loop, and a saver: what graphs of the v1 years hold."""
  tf_graph = tf.Graph()
  resources, control_flow = v1.resource_variables_enabled(), v1.control_flow_v2_enabled()
  v1.disable_resource_variables()
  v1.disable_control_flow_v2()
  try:
    with tf_graph.as_default():
      v1.set_random_seed(1)
      inputs = v1.placeholder(tf.float32, [3, 4], name="inputs")
      weights = v1.get_variable("weights", [4, 4])
      counter = v1.get_variable("counter", [], initializer=v1.zeros_initializer())
      # One input feeds the loop, so that its gradients are loops as well.
      _, looped = tf.while_loop(
          lambda i, x: i < 3, lambda i, x: (i + 1, tf.tanh(tf.matmul(x, weights))), (0, inputs))
      loss = tf.reduce_sum(looped, name="loss")
      step = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
      train = tf.group(step, v1.assign_add(counter, 1.0), name="train")
      v1.add_to_collection("train_op", train)
      init = v1.global_variables_initializer()
      v1.train.Saver()
  finally:
    if resources:
      v1.enable_resource_variables()
    if control_flow:
      v1.enable_control_flow_v2()
  fields = collections.namedtuple("Program", "graph train_op loss init_op")
  return fields(tf_graph, train.name, "loss:0", init.name)


@pytest.mark.parametrize("split_loops", [False, True])
def test_reference_variables_and_loops_run_where_they_are_placed(split_loops):
  program = _v1_program()
  graph = load_graph(program.graph, split_loops=split_loops)
  assert {"VariableV2", "Enter", "NextIteration", "StackPushV2"} <= set(graph.op_types)
  inside = np.unique(graph.colocation[graph.executions > 1])
  assert len(inside) > 20 if split_loops else len(inside) == 1
  for seed in range(3):
    placement = Placement.from_indices(graph, _cluster(), _random_placement(graph, seed))
    assert check(graph, placement, _cluster()) == []
    feeds = {"inputs:0": np.arange(12, dtype=np.float32).reshape(3, 4) / 12}
    placed = graph_files.imported(placement.apply(graph.source.proto))
    losses, metadata = _train(placed, program, feeds, num_cpus=2)
    expected, _ = _train(graph_files.imported(graph.source.proto), program, feeds, num_cpus=1)
    np.testing.assert_array_equal(losses, expected)
    elsewhere, _ = _unaccounted(graph, placement, metadata)
    assert elsewhere == []
    # TensorFlow accepts the ops that are not needed, too.
    with v1.Session(graph=placed, config=session_lib.session_config(num_cpus=2)) as session:
      session.run(program.init_op)


def test_loops_of_tf2_may_be_split_and_branches_run_where_they_are_placed():
  @tf.function(input_signature=[tf.TensorSpec([3, 4])])
  def function(fed):
    x = tf.identity(fed)  # a Switch that reads a feed runs where feeds arrive, whatever it is told
    weights = tf.fill([4, 4], 0.3)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      state = x
      for i in tf.range(3):
        state = tf.tanh(state @ weights)
        if i > 1:
          state += tf.sin(x)
      state = tf.switch_case(
          tf.cast(state[0, 0] * 0.0, tf.int32) + 1,
          [lambda: state, lambda: state * 2.0 + tf.cos(x), lambda: tf.exp(state)])
    return state, tape.gradient(state, weights)

  tf_graph = function.get_concrete_function().graph
  fetches = [tensor.name for tensor in tf_graph.outputs]
  graph = load_graph(tf_graph.as_graph_def(), fetches=fetches, split_loops=True)
  feeds = {f"{name}:0": np.arange(12, dtype=np.float32).reshape(3, 4) / 12
           for name in (tensor.op.name for tensor in tf_graph.inputs)}
  original = graph_files.imported(graph.source.proto)
  with v1.Session(graph=original, config=session_lib.session_config(num_cpus=1)) as session:
    expected = session.run(fetches, feeds)
  for seed in range(2):
    indices = _random_placement(graph, seed)
    assert {0, 1} == set(indices[graph.executions > 1].tolist())
    placement = Placement.from_indices(graph, _cluster(), indices)
    assert check(graph, placement, _cluster()) == []
    metadata = v1.RunMetadata()
    placed = graph_files.imported(placement.apply(graph.source.proto))
    with v1.Session(graph=placed, config=session_lib.session_config(num_cpus=2)) as session:
      found = session.run(
          fetches, feeds, options=session_lib.trace_options(), run_metadata=metadata)
    assert _unaccounted(graph, placement, metadata)[0] == []
    for one, other in zip(expected, found):
      np.testing.assert_array_equal(one, other)


def _with_moved(placement, op):
  """The placement with one op moved to the other of two devices."""
  devices = dict(placement)
  devices[op] = "/CPU:1" if devices[op] == "/CPU:0" else "/CPU:0"
  return Placement(devices, placement.devices)


def test_check_reports_what_tensorflow_would_move_without_a_word():
  model, graph = _model(_SPECS[0])
  placement = Placement.from_indices(graph, _cluster(), _random_placement(graph, seed=4))
  update = "optimizer/Adam/update_layer_0/kernel/ResourceApplyAdam"
  split = _with_moved(placement, update)
  problems = check(graph, split, _cluster())
  assert len(problems) == 1 and update in problems[0] and "share a device" in problems[0]
  placed = graph_files.imported(split.apply(graph.source.proto).graph_def)
  _, metadata = _train(placed, model, _feeds(graph), num_cpus=2)
  assert _unaccounted(graph, split, metadata) == ([update], [])


def test_check_reports_what_tensorflow_refuses_also_for_ops_that_are_not_run():
  with tf.Graph().as_default() as tf_graph:
    left, right = (v1.get_variable(name, [2], use_resource=True) for name in ("left", "right"))
    loss = tf.reduce_sum(left * right, name="loss")
    both = tf.zeros([2], name="both")
    both.op._set_attr("_class", v1.AttrValue(
        list=v1.AttrValue.ListValue(s=[b"loc:@left", b"loc:@right"])))
    init = v1.global_variables_initializer()
  graph = load_graph(tf_graph, fetches=["loss"])
  assert "both" not in graph.op_names
  indices = np.array([name.startswith("right") for name in graph.op_names]).astype(np.int32)
  placement = Placement.from_indices(graph, _cluster(), indices)
  problems = check(graph, placement, _cluster())
  assert len(problems) == 1 and "share a device" in problems[0]
  placed = graph_files.imported(placement.apply(graph.source.proto))
  with v1.Session(graph=placed, config=session_lib.session_config(num_cpus=2)) as session:
    with pytest.raises(tf.errors.InvalidArgumentError, match="olocat"):
      session.run(init.name)
      session.run(loss.name)
