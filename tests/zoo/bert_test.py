import numpy as np
import pytest
import tensorflow as tf

from placeto_tf import zoo
from sessions import unoptimized

v1 = tf.compat.v1


@pytest.fixture(name="built", scope="module")
def built_fixture():
  return zoo.build("bert:size=tiny:batch=2:steps=16:vocab=40")


def test_sizes_are_those_of_the_papers():
  # Word pieces, positions and segments; the published 4.4 M of the tiny one, with its heads.
  built = zoo.build("bert:size=tiny:batch=1")
  hidden, inner, layers = 128, 512, 2
  attention = 4 * (hidden * hidden + hidden)
  feed_forward = hidden * inner + inner + inner * hidden + hidden
  embeddings = (30522 + 512 + 2) * hidden + 2 * hidden
  heads = (hidden * hidden + hidden) * 2 + 2 * hidden + 30522 + 2 * hidden + 2
  expected = embeddings + layers * (attention + feed_forward + 4 * hidden) + heads
  assert built.num_parameters == expected
  assert 4.3e6 < expected - heads < 4.5e6


def test_masked_words_are_found_where_the_positions_say(built):
  value, found = (built.graph.get_tensor_by_name(name) for name in (
      "layer_1/norm/batchnorm/add_1:0", "masked/transform/Reshape:0"))
  rng = np.random.default_rng(0)
  positions = np.array([[3, 0], [15, 7]])
  feeds = {"words:0": rng.integers(0, 40, (2, 16)), "segments:0": rng.integers(0, 2, (2, 16)),
           "masked_positions:0": positions}
  with v1.Session(graph=built.graph, config=unoptimized()) as session:
    session.run(built.init_op)
    value, found = session.run([value, found], feeds)
  expected = np.concatenate([value[row, positions[row]] for row in range(2)])
  np.testing.assert_array_equal(found, expected)
