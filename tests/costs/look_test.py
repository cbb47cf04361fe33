"""What inference cannot know is seen in a run of the step, in a process of its own."""

import os
import re

import pytest
import tensorflow as tf

from placeto_tf.costs import estimate, step_run
from placeto_tf.costs.look import FAILED, looking
from placeto_tf.errors import CostError
from placeto_tf.graphs import load_graph

v1 = tf.compat.v1


def _graph(build):
  with tf.Graph().as_default() as tf_graph:
    tf.identity(build(v1.placeholder(tf.float32, [6, 4], name="x")), name="y")
  return load_graph(tf_graph.as_graph_def(), fetches=["y:0"])


def _work(build, mode, cache=False):
  graph = _graph(build)
  with looking(mode):
    work = estimate.work_of(graph, cache)
  return graph, work, {
      op_type: work.executions[graph.op_types.index(op_type)] for op_type in graph.op_types}


def _until(x):
  """Doubles until the sum is large: 6 rounds for 24 numbers of mean 0.5."""
  return tf.while_loop(
      lambda a: tf.reduce_sum(a) < 700.0, lambda a: tf.exp(tf.math.log(2 * a)), [x])


def _positive(x):
  """A product with the rows that a mask leaves: how many is known when it runs."""
  return tf.matmul(tf.boolean_mask(x, tf.reduce_sum(x, 1) > -1.0), tf.ones([4, 1000]))


def test_rounds_are_those_of_the_run():
  _, work, runs = _work(_until, "auto")
  assert runs["Exp"] == 6 and runs["Less"] == 7 and not work.unknown
  _, work, runs = _work(_until, "no")
  assert runs["Exp"] == 10 and "the rounds of 1 loop" in work.unknown


def test_shapes_are_those_of_the_run():
  graph, work, _ = _work(_positive, "auto")
  product = graph.op_types.index("MatMul")
  assert work.output_bytes[graph.output_offsets[product]] == 6 * 1000 * 4 and not work.unknown
  assert work.flops[product] == 2 * 6 * 4 * 1000
  _, work, _ = _work(_positive, "no")
  assert "shapes" in work.unknown and "the first: " in work.unknown


def test_a_trip_count_of_the_users_goes_before_the_rounds_of_the_run():
  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, [6, 4], name="x")
    tf.identity(_until(_positive(x)[:, :1]), name="y")
  graph = load_graph(tf_graph.as_graph_def(), fetches=["y:0"], trip_count=3)
  with looking("auto"):
    work = estimate.work_of(graph, cache=False)
  assert work.executions[graph.op_types.index("Exp")] == 3 and not work.unknown
  assert "runs 3 times, as given" in " ".join(work.notes)


def test_the_branch_is_the_one_that_was_taken():
  def build(x):
    return tf.cond(tf.reduce_sum(x) < 1e6, lambda: tf.tanh(_until(x)), lambda: tf.sin(
        tf.matmul(x, tf.ones([4, 9_000_000]))[:, :4]))

  _, _, runs = _work(build, "auto")
  assert (runs["Tanh"], runs["Sin"], runs["MatMul"]) == (1, 0, 0)
  _, _, runs = _work(build, "no")  # the dearer one
  assert (runs["Tanh"], runs["Sin"], runs["MatMul"]) == (0, 1, 1)


def _doubled(start):
  """Doubles four numbers until their sum is 100."""
  tf.identity(tf.while_loop(
      lambda a: tf.reduce_sum(a) < 100.0, lambda a: a * 2.0, [start + 0.0]), name="y")


def _rounds(source, cache=False):
  graph = load_graph(source, fetches=["y:0"])
  with looking("auto"):
    work = estimate.work_of(graph, cache)
  assert not work.unknown
  return work.executions[graph.op_types.index("Mul")]


def test_variables_and_lookup_tables_have_their_initializers_values():
  with tf.Graph().as_default():
    start = v1.get_variable("start", initializer=tf.fill([4], 1.0), use_resource=True)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([7], [2.0]), 0.0)
    _doubled(start + table.lookup(tf.constant(7)))
    meta_graph = v1.train.export_meta_graph()
  assert _rounds(meta_graph) == 4  # 12, 24, 48, 96, 192


def test_an_initializer_whose_function_uses_files_is_not_run(tmp_path):
  path = str(tmp_path / "written")

  @tf.function
  def filled(*_, **__):
    with tf.control_dependencies([tf.io.write_file(path, "run")]):
      return tf.fill([4], 3.0)

  with tf.Graph().as_default():
    start = v1.get_variable("start", [4], initializer=filled, use_resource=True)
    _doubled(start)
    meta_graph = v1.train.export_meta_graph()
  assert any(node.op == "WriteFile" for function in meta_graph.graph_def.library.function
             for node in function.node_def)
  # Small numbers stand in: 4 of 0.05 at most need 9 rounds at least, those of the file need 4.
  assert _rounds(meta_graph) >= 9 and not os.path.exists(path)


def test_a_saved_model_is_run_with_the_values_of_its_checkpoint(tmp_path):
  class Model(tf.Module):
    def __init__(self):
      self.bound = tf.Variable(700.0)

    @tf.function(input_signature=[tf.TensorSpec([6, 4], tf.float32)])
    def serve(self, x):
      return tf.while_loop(lambda a: tf.reduce_sum(a) < self.bound,
                           lambda a: tf.exp(tf.math.log(2 * a)), [x])

  model, path = Model(), str(tmp_path / "model")
  tf.saved_model.save(model, path, signatures=model.serve)
  # Its functions that save and restore use files; the step calls neither.
  graph = load_graph(path)
  with looking("auto"):
    work = estimate.work_of(graph, cache=False)
  assert work.executions[graph.op_types.index("Exp")] == 6 and not work.unknown


def test_a_meta_graph_is_run_with_the_values_of_the_checkpoint_beside_it(tmp_path):
  model = str(tmp_path / "model")
  with tf.Graph().as_default():
    start = v1.get_variable("start", initializer=tf.fill([4], 3.0), use_resource=True)
    _doubled(start)
    saver = v1.train.Saver()
    with v1.Session() as session:
      for value, rounds in ((20.0, 1), (10.0, 2)):  # 80, 160, and then 40, 80, 160
        start.load([value] * 4, session)
        saver.save(session, model)
        # A checkpoint of other values is another entry of the cache.
        for _ in range(2):
          assert _rounds(model + ".meta", str(tmp_path / "cache")) == rounds
  assert len([name for name in os.listdir(tmp_path / "cache") if "-" in name]) == 2


def test_a_look_is_renewed_when_an_initializer_changes(tmp_path):
  for value, rounds in ((3.0, 4), (20.0, 1)):
    with tf.Graph().as_default():
      start = v1.get_variable("start", initializer=tf.fill([4], value), use_resource=True)
      _doubled(start)
      assert _rounds(v1.train.export_meta_graph(), str(tmp_path)) == rounds


def test_what_was_seen_is_kept_by_graph_and_feeds(tmp_path, monkeypatch):
  ran = []
  look = estimate.looks.look
  monkeypatch.setattr(estimate.looks, "look", lambda *given: ran.append(1) or look(*given))
  for mode, rounds in (("auto", 6), ("auto", 6), ("no", 10)):
    assert _work(_until, mode, str(tmp_path))[2]["Exp"] == rounds
  assert estimate.work_of(_graph(_until), str(tmp_path)).executions.max() > 6  # outside of a look
  assert len(ran) == 1
  assert len([name for name in os.listdir(tmp_path) if "-" in name]) == 1


def _writes(x, path):
  with tf.control_dependencies([tf.io.write_file(path, "seen")]):
    return _until(x)


def test_a_step_with_effects_outside_of_it_is_not_run_unasked(tmp_path):
  path = str(tmp_path / "written")
  _, work, runs = _work(lambda x: _writes(x, path), "auto")
  assert runs["Exp"] == 10 and work.unknown and not os.path.exists(path)
  assert "WriteFile" in " ".join(work.notes)
  _, work, runs = _work(lambda x: _writes(x, path), "yes")
  assert runs["Exp"] == 6 and not work.unknown and os.path.exists(path)


def test_a_look_that_failed_is_tried_again_only_if_asked_for(tmp_path):
  path = str(tmp_path / "written")
  for mode, rounds in (("auto", 10), ("auto", 10), ("no", 10), ("yes", 6), ("auto", 6)):
    _, work, runs = _work(lambda x: _writes(x, path), mode, str(tmp_path / "cache"))
    assert runs["Exp"] == rounds and (
        "WriteFile" in " ".join(work.notes)) == (rounds == 10 and mode != "no")


def _dequeued(shape):
  """Rows of a queue, of which a mask leaves some."""
  batch = tf.queue.PaddingFIFOQueue(9, [tf.float32], [shape]).dequeue_many(6)
  return _positive(tf.reshape(batch, [-1, 4]))


def _reduced():
  return _positive(tf.raw_ops.CollectiveReduce(
      input=tf.ones([6, 4]), group_size=2, group_key=1, instance_key=1, merge_op="Add",
      final_op="Id", subdiv_offsets=[0]))


@pytest.mark.parametrize("build, said", [
    (lambda _: _dequeued([4]), ""), (lambda _: _dequeued([None]), "feed padding_fifo_queue_"),
    (lambda _: _reduced(), "'CollectiveReduce' .CollectiveReduce. waits for other processes")])
def test_what_a_queue_would_give_is_fed_and_other_waits_are_known_before_a_run(build, said):
  shown = []
  with looking("auto", shown.append):
    work = estimate.work_of(_graph(build), cache=False)
  assert bool(shown) == bool(not work.unknown) == (not said)
  assert re.search(said, " ".join(work.notes)) and (FAILED in " ".join(work.notes)) == bool(said)


def test_a_large_step_is_not_run_unasked():
  def build(x):
    return _until(tf.matmul(tf.tile(x, [10_000, 1]), tf.ones([4, 200_000]))[:6, :4])

  _, work, _ = _work(build, "auto")
  assert "too large" in " ".join(work.notes)


def test_a_step_that_does_not_run_stays_unknown_and_a_note_says_why():
  def build(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, -1.0, message="negative only")]):
      return _until(x)

  _, work, runs = _work(build, "auto")
  assert runs["Exp"] == 10 and work.unknown and "assertion failed" in " ".join(work.notes)


def test_a_trace_that_is_cut_off_shows_nothing(monkeypatch):
  monkeypatch.setattr(step_run, "_MOST_TRACED", 2)
  trace = v1.RunMetadata().step_stats
  trace.dev_stats.add().node_stats.add(node_name="a")
  assert step_run._of_trace(trace).executions == {"a": 1}
  trace.dev_stats[0].node_stats.add(node_name="a")
  with pytest.raises(CostError, match="more than the 2 ops"):
    step_run._of_trace(trace)


def test_a_tensor_that_grows_from_round_to_round_has_its_size_in_the_middle():
  def build(x):
    return tf.while_loop(
        lambda i, _: i < 20, lambda i, a: (i + 1, tf.concat([tf.tanh(a), x], 0)),
        (0, x[:0]), shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 4])))[1]

  graph, work, _ = _work(build, "auto")
  tanh = graph.output_offsets[graph.op_types.index("Tanh")]
  assert work.output_bytes[tanh] == 10 * 6 * 4 * 4 and not work.unknown
  graph, work, _ = _work(build, "no")
  assert "Merge" in work.unknown or "merge" in work.unknown
