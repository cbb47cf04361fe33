"""What the published models are made of, model by model."""

import random
import sys

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf import zoo
from placeto_tf.graphs import load_graph
from placeto_tf.zoo import amoebanet, enas, image_models, transformer_xl, wavenet
from sessions import unoptimized

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def resnet():
  return zoo.build("resnet50:batch=2:image=32")


def test_batch_norm_trains_and_its_statistics_belong_to_the_step(resnet):
  norms = [op for op in resnet.graph.get_operations() if op.type == "FusedBatchNormV3"]
  assert len(norms) == 53 and all(op.get_attr("is_training") for op in norms)
  needed = load_graph(resnet.meta_graph_def()).op_types
  assert needed.count("AssignSubVariableOp") == 2 * len(norms)
  assert needed.count("ResourceApplyMomentum") == 214


def test_fetching_the_loss_alone_changes_no_variable(resnet):
  rng = np.random.default_rng(0)
  feeds = {
      "images:0": rng.random((2, 32, 32, 3), np.float32), "labels:0": np.array([1, 2], np.int32)}
  with v1.Session(graph=resnet.graph, config=unoptimized()) as session:
    session.run(resnet.init_op)
    first = session.run(resnet.loss, feeds)
    assert session.run(resnet.loss, feeds) == first
    session.run(resnet.train_op, feeds)
    assert session.run(resnet.loss, feeds) != first


def test_builds_are_equal_also_after_keras_was_seeded_and_leave_its_seed_alone(resnet):
  utils = image_models.legacy_keras().utils
  before = random.getstate(), np.random.get_state()
  holder = sys.modules[f"{utils.__name__.split('.')[0]}.src.backend"]._SEED_GENERATOR
  generator = getattr(holder, "generator", None)
  try:
    utils.set_random_seed(1)
    again = zoo.build("resnet50:batch=2:image=32")
    assert again.graph.as_graph_def() == resnet.graph.as_graph_def()
    assert holder.generator.random() == random.Random(1).random()
  finally:
    holder.generator = generator
    random.setstate(before[0])
    np.random.set_state(before[1])


def test_it_has_as_many_parameters_as_published():
  # 82 M for 18 cells and 208 filters (Huang et al. 2018); the image's size does not matter.
  with tf.Graph().as_default():
    amoebanet.amoebanet(batch=1, image=32, cells=18, filters=208)
    count = sum(variable.shape.num_elements() for variable in v1.trainable_variables())
  assert round(count / 1e6) == 82


@pytest.fixture(name="bert", scope="module")
def bert_fixture():
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


def test_masked_words_are_found_where_the_positions_say(bert):
  value, found = (bert.graph.get_tensor_by_name(name) for name in (
      "layer_1/norm/batchnorm/add_1:0", "masked/transform/Reshape:0"))
  rng = np.random.default_rng(0)
  positions = np.array([[3, 0], [15, 7]])
  feeds = {"words:0": rng.integers(0, 40, (2, 16)), "segments:0": rng.integers(0, 2, (2, 16)),
           "masked_positions:0": positions}
  with v1.Session(graph=bert.graph, config=unoptimized()) as session:
    session.run(bert.init_op)
    value, found = session.run([value, found], feeds)
  expected = np.concatenate([value[row, positions[row]] for row in range(2)])
  np.testing.assert_array_equal(found, expected)


def test_sampled_cells_read_earlier_states_only_and_use_every_operation():
  rng = random.Random(0)
  operations, activations = set(), set()
  for _ in range(50):
    for node, halves in enumerate(enas._sample_conv_cell(rng, 5)):
      for state, operation in halves:
        assert 0 <= state < 2 + node
        operations.add(operation)
    for node, (source, activation) in enumerate(enas._sample_recurrent_cell(rng, 8)):
      assert source == -1 if node == 0 else 0 <= source < node
      activations.add(activation)
  assert operations == set(enas._OPERATIONS) and activations == set(enas._ACTIVATIONS)


def test_the_recurrent_cell_computes_highways_and_averages_loose_ends():
  batch, hidden = 2, 3
  # Node 0 feeds nodes 1 and 2, which nobody reads.
  shape = [(-1, "tanh"), (0, "relu"), (0, "identity")]
  inputs = np.random.default_rng(0).normal(size=(2, batch, hidden)).astype(np.float32)
  with tf.Graph().as_default():
    outputs = enas._recurrent_layer(shape, [tf.constant(step) for step in inputs], hidden)
    weights = {variable.op.name: variable for variable in v1.trainable_variables()}
    with v1.Session() as session:
      session.run(v1.global_variables_initializer())
      session.run([weight.assign(5.0 * weight) for weight in weights.values()])
      found, values = session.run([outputs, weights])
  output = np.zeros((batch, hidden))

  def node(value, carried, weight, activate):
    gate, content = np.split(value @ weight, 2, axis=1)
    gate = 1 / (1 + np.exp(-gate))
    return gate * activate(content) + (1 - gate) * carried

  for step in range(2):
    first = node(np.concatenate([inputs[step], output], axis=1), output, values["node_0"], np.tanh)
    second = node(first, first, values["node_1"], lambda x: np.maximum(x, 0))
    output = (second + node(first, first, values["node_2"], lambda x: x)) / 2
    np.testing.assert_allclose(found[step], output, rtol=1e-4, atol=1e-5)


@pytest.fixture(name="gnmt", scope="module")
def gnmt_fixture():
  return zoo.build("gnmt:batch=2:layers=3:steps=3:hidden=4:vocab=30")


def test_the_first_layer_reads_both_ways(gnmt):
  """A change of the last source word reaches the encoder's first output, and the other way."""
  first, last = (
      gnmt.graph.get_tensor_by_name(f"encoder/{name}:0") for name in ("concat", "concat_2"))
  source = np.array([[1, 2, 3], [4, 5, 6]])
  with v1.Session(graph=gnmt.graph, config=unoptimized()) as session:
    session.run(gnmt.init_op)

    def run(words):
      return session.run([first, last], {"source:0": words})

    before = run(source)
    for place, others in ((2, 0), (0, 1)):
      changed = source.copy()
      changed[:, place] += 10
      assert (run(changed)[others] != before[others]).any(axis=1).all()


def test_attention_reaches_every_layer_of_the_decoder(gnmt):
  shapes = {variable.op.name: variable.shape.as_list()
            for variable in gnmt.graph.get_collection("trainable_variables")}
  hidden = 4
  for layer in range(3):  # input, context and state
    assert shapes[f"decoder/level_{layer}/layer_0/kernel"] == [3 * hidden, 4 * hidden]
  assert shapes["encoder/level_1/layer_0/kernel"] == [3 * hidden, 4 * hidden]  # both directions
  assert shapes["encoder/level_2/layer_0/kernel"] == [2 * hidden, 4 * hidden]


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
