import numpy as np
import pytest
import tensorflow as tf

from placeto_tf import zoo
from sessions import unoptimized

v1 = tf.compat.v1


@pytest.fixture(name="built", scope="module")
def built_fixture():
  return zoo.build("gnmt:batch=2:layers=3:steps=3:hidden=4:vocab=30")


def test_the_first_layer_reads_both_ways(built):
  """A change of the last source word reaches the encoder's first output, and the other way."""
  first, last = (
      built.graph.get_tensor_by_name(f"encoder/{name}:0") for name in ("concat", "concat_2"))
  source = np.array([[1, 2, 3], [4, 5, 6]])
  with v1.Session(graph=built.graph, config=unoptimized()) as session:
    session.run(built.init_op)

    def run(words):
      return session.run([first, last], {"source:0": words})

    before = run(source)
    for place, others in ((2, 0), (0, 1)):
      changed = source.copy()
      changed[:, place] += 10
      assert (run(changed)[others] != before[others]).any(axis=1).all()


def test_attention_reaches_every_layer_of_the_decoder(built):
  shapes = {variable.op.name: variable.shape.as_list()
            for variable in built.graph.get_collection("trainable_variables")}
  hidden = 4
  for layer in range(3):  # input, context and state
    assert shapes[f"decoder/level_{layer}/layer_0/kernel"] == [3 * hidden, 4 * hidden]
  assert shapes["encoder/level_1/layer_0/kernel"] == [3 * hidden, 4 * hidden]  # both directions
  assert shapes["encoder/level_2/layer_0/kernel"] == [2 * hidden, 4 * hidden]
