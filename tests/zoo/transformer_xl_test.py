import numpy as np
import tensorflow as tf

from placeto_tf import zoo
from placeto_tf.zoo import transformer_xl
from sessions import unoptimized

v1 = tf.compat.v1


def test_a_shifted_score_is_that_of_the_distance():
  steps, memory = 3, 2
  length = memory + steps
  # Scores are their own distances: length-1, ..., 0 in every row.
  scores = np.tile(np.arange(length - 1.0, -1.0, -1.0), [1, 1, steps, 1]).astype(np.float32)
  with tf.Graph().as_default(), v1.Session() as session:
    shifted = session.run(transformer_xl.relative_shift(tf.constant(scores)))[0, 0]
  for i in range(steps):
    for j in range(memory + i + 1):  # what lies ahead is masked
      assert shifted[i, j] == memory + i - j


def _run(built, feeds_list):
  """Losses of the batches in turn, and the memory of the first layer at the end."""
  memory = "layer_0/memory/Read/ReadVariableOp:0"
  with v1.Session(graph=built.graph, config=unoptimized()) as session:
    session.run(built.init_op)
    losses = [session.run([built.train_op, built.loss], feeds)[1] for feeds in feeds_list]
    return losses, session.run(memory)


_SPEC = ("transformer_xl:batch=2:layers=2:segment=4:memory=6:heads=2:width=4:inner=8:vocab=20:"
         "optimizer=sgd")


def test_a_segment_remembers_the_inputs_of_those_before():
  built = zoo.build(_SPEC)
  rng = np.random.default_rng(0)
  first, second = ({"tokens:0": rng.integers(0, 20, (2, 4)), "labels:0": np.zeros((2, 4))}
                   for _ in range(2))
  _, once = _run(built, [first])
  assert (once[:, :2] == 0).all() and (once[:, 2:] != 0).all()
  _, twice = _run(built, [first, second])
  np.testing.assert_array_equal(twice[:, :2], once[:, 4:])  # the oldest two were pushed out
  after_itself, _ = _run(built, [first, first])
  after_another, _ = _run(built, [second, first])
  assert after_itself[1] != after_another[1]


def test_no_position_sees_what_comes_later():
  built = zoo.build(_SPEC)
  tokens = np.random.default_rng(1).integers(0, 20, (2, 4))
  changed = tokens.copy()
  changed[:, 3] = (changed[:, 3] + 1) % 20
  logits = built.graph.get_tensor_by_name("softmax/BiasAdd:0")
  with v1.Session(graph=built.graph, config=unoptimized()) as session:
    session.run(built.init_op)
    before, after = (
        session.run(logits, {"tokens:0": words}).reshape(2, 4, -1) for words in (tokens, changed))
  np.testing.assert_array_equal(before[:, :3], after[:, :3])
  assert (before[:, 3] != after[:, 3]).any()
