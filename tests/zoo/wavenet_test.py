import numpy as np
import tensorflow as tf

from placeto_tf import zoo
from placeto_tf.zoo import wavenet
from sessions import unoptimized

v1 = tf.compat.v1


def test_a_delay_moves_values_to_the_future():
  with tf.Graph().as_default(), v1.Session() as session:
    value = tf.reshape(tf.range(1.0, 6.0), [1, 5, 1])
    found = session.run([wavenet.delay(value, steps) for steps in (1, 2, 9)])
  assert [list(value[0, :, 0]) for value in found] == [
      [0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [0, 0, 0, 0, 0]]


def test_an_output_sees_its_past_as_far_as_the_dilations_reach_and_nothing_later():
  # Two stacks of dilations 1, 2, 4: 1 + 2 * 7 samples.
  built = zoo.build("wavenet:batch=1:stacks=2:layers=6:samples=24:channels=16:levels=8")
  skips = built.graph.get_tensor_by_name("output/AddN:0")
  audio = np.zeros((1, 24), np.int32)
  changed = audio.copy()
  changed[0, 5] = 3
  with v1.Session(graph=built.graph, config=unoptimized()) as session:
    session.run(built.init_op)
    # Small weights hide what is far behind; larger ones do not.
    with built.graph.as_default():
      variables = v1.trainable_variables()
      session.run([v.assign(10.0 * v) for v in variables])
    before, after = (session.run(skips, {"audio:0": values}) for values in (audio, changed))
  seen = np.flatnonzero((before != after).any(axis=2)[0])
  assert (seen.min(), seen.max()) == (5, 5 + 14)
