"""A loop or call and the same ops written out take the same simulated time."""

import numpy as np
import pytest
import tensorflow as tf
from training_constructs import Cell

from placeto_tf.clusters import Cluster, allowed_devices
from placeto_tf.clusters.presets import PRESETS
from placeto_tf.costs.estimate import from_work, work_of
from placeto_tf.costs.look import looking
from placeto_tf.graphs import load_graph
from placeto_tf.simulation import Simulator

v1 = tf.compat.v1
ROUNDS = 25
FEW = ("cpu", "k80", "h100")  # presets where a construct is not tried on all


@pytest.fixture(params=["v1", "v2"])
def control_flow(request):
  """Both kinds of loops that TensorFlow writes."""
  was = v1.control_flow_v2_enabled()
  (v1.enable_control_flow_v2 if request.param == "v2" else v1.disable_control_flow_v2)()
  yield request.param
  (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()


def _step(a, w):
  for _ in range(4):
    a = tf.tanh(tf.matmul(a, w))
  return a


def _inputs():
  x = v1.placeholder(tf.float32, [8, 16], name="x")
  return x, v1.get_variable("w", [16, 16], use_resource=True)


def _while(x, w, unrolled):
  if unrolled:
    for _ in range(ROUNDS):
      x = _step(x, w)
    return x
  return tf.while_loop(lambda i, _: i < ROUNDS, lambda i, a: (i + 1, _step(a, w)), [0, x])[1]


def _nested(x, w, unrolled):
  if unrolled:
    return _while(x, w, True)
  def inner(a):
    return tf.while_loop(
        lambda j, _: j < ROUNDS // 5, lambda j, a: (j + 1, _step(a, w)), [0, a])[1]
  return tf.while_loop(lambda i, _: i < 5, lambda i, a: (i + 1, inner(a)), [0, x])[1]


def _gradient(x, w, unrolled):
  if not unrolled:
    of_x, of_w = tf.gradients(tf.reduce_sum(_while(x, w, False)), [x, w])
    return tf.matmul(of_x, of_w)
  values = [x]
  for _ in range(ROUNDS):
    values.append(_step(values[-1], w))
  # As the gradient of a loop: round by round backwards, with a sum of what each gives for w.
  of_x, of_w = tf.ones_like(values[-1]), tf.zeros_like(w)
  for before, after in zip(values[-2::-1], values[::-1]):
    of_x, part = tf.gradients(after, [before, w], of_x, stop_gradients=[before])
    of_w += part
  return tf.matmul(of_x, of_w)


def _sum_over_rounds(x, w, unrolled):
  if not unrolled:
    return tf.while_loop(
        lambda i, *_: i < ROUNDS, lambda i, a, total: (i + 1, tf.tanh(a), total + a),
        [0, x, tf.zeros_like(x)])[2]
  total = tf.zeros_like(x)
  for _ in range(ROUNDS):
    total, x = total + x, tf.tanh(x)
  return total  # without the last round's tanh, which the loop has


def _map_fn(x, w, unrolled):
  rows = tf.tile(x[None], [ROUNDS, 1, 1])
  if unrolled:
    return tf.stack([_step(row, w) for row in tf.unstack(rows)])
  return tf.map_fn(lambda a: _step(a, w), rows)


def _dynamic_rnn(x, w, unrolled):
  sequence = tf.tile(x[:, None], [1, ROUNDS, 1])
  if not unrolled:
    return v1.nn.dynamic_rnn(Cell(w, w), sequence, dtype=tf.float32)[0]
  cell, state, outputs = Cell(w, w), tf.zeros([8, 16]), []
  for step in tf.unstack(sequence, axis=1):
    out, state = cell(step, state)
    outputs.append(out)
  return tf.stack(outputs, 1)


def _growing_list(x, w, unrolled):
  if unrolled:
    return tf.add_n([_step(x, w) for _ in range(ROUNDS)])
  written = tf.while_loop(
      lambda i, _: i < ROUNDS,
      lambda i, a: (i + 1, a.write(i, _step(x, w))),
      [0, tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[8, 16])])[1]
  return tf.reduce_sum(written.stack(), 0)


def _conditional(x, w, unrolled):
  def dear(a):
    return _step(a, w) + tf.random.uniform([8, 16])  # a stateful If
  if unrolled:
    for i in range(ROUNDS):
      x = tf.sin(x) if i % 3 else dear(x)
    return x
  return tf.while_loop(
      lambda i, _: i < ROUNDS,
      lambda i, a: (i + 1, tf.cond(i % 3 > 0, lambda: tf.sin(a), lambda: dear(a))), [0, x])[1]


def _call(x, w, unrolled):
  def function(a):
    return _while(a, w, True)
  return function(x) if unrolled else tf.function(function)(x)


CONSTRUCTS = {
    "while": _while, "nested": _nested, "gradient": _gradient,
    "sum_over_rounds": _sum_over_rounds, "map_fn": _map_fn,
    "dynamic_rnn": _dynamic_rnn, "growing_list": _growing_list, "conditional": _conditional,
    "call": _call}


def _work(build, live=False):
  with tf.Graph().as_default() as graph:
    tf.identity(build(*_inputs()), name="y")
  loaded = load_graph(graph if live else graph.as_graph_def(), fetches=["y:0"])
  with looking("auto"):  # which shows how often a branch is taken
    return loaded, work_of(loaded, cache=False)


def _step_us(loaded, work, preset):
  cluster = Cluster.parse(f"{preset}:1")
  allowed = allowed_devices(loaded, cluster)
  place = np.where(allowed[:, 0], 0, allowed.argmax(axis=1)).astype(np.int32)
  return Simulator(loaded, from_work(loaded, cluster, work), cluster).simulate(place).step_time_us


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_rounds_launch_what_unrolled_ops_launch(construct, control_flow):
  build = CONSTRUCTS[construct]
  loop, unrolled, live = (
      _work(lambda x, w, flat=flat: build(x, w, flat), live)
      for flat, live in ((False, False), (True, False), (False, True)))
  for preset in PRESETS if construct == "while" else FEW:
    whole = _step_us(*unrolled, preset)
    assert _step_us(*loop, preset) == pytest.approx(whole, rel=0.1), preset
    assert _step_us(*live, preset) == pytest.approx(whole, rel=0.1), preset


def test_the_dearer_branch_of_a_conditional_is_what_a_step_takes(control_flow):
  def build(x, w):
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: _while(x, w, True), lambda: _step(x, w) + _step(x, w))

  found = _work(build)
  dear, cheap = _work(lambda x, w: _while(x, w, True)), _work(_step)
  for preset in FEW:
    times = [_step_us(*each, preset) for each in (found, dear, cheap)]
    assert times[1] < times[0] < times[1] + times[2] + 0.1 * times[1]


def test_nested_conditionals_and_gradients_agree_on_the_branch(control_flow):
  def build(x, w):
    def inner():
      return tf.cond(x[0, 1] > 0, lambda: _while(x, w, True), lambda: _step(x, w))
    y = tf.cond(x[0, 0] > 0, inner, lambda: x * 2.0)
    return tf.gradients(tf.reduce_sum(y), [x])[0]

  graph, work = _work(build)
  runs = {
      op_type: sum(work.executions[i] for i, found in enumerate(graph.op_types) if found == op_type)
      for op_type in ("Tanh", "TanhGrad")}
  assert runs == {"Tanh": 4 * ROUNDS, "TanhGrad": 4 * ROUNDS}


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_loop_may_have_no_round(rounds, control_flow):
  def build(x, w):
    return tf.while_loop(lambda i, _: i < rounds, lambda i, a: (i + 1, _step(a, w)), [0, x])[1]

  graph, work = _work(build)
  assert work.executions[graph.op_types.index("Less")] == rounds + 1
  assert work.executions[graph.op_types.index("Tanh")] == rounds
  for preset in FEW:
    assert _step_us(graph, work, preset) >= 0.0
