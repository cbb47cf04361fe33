"""Models that people have, trained beside their replicas.

  ordinary_models.py 2|3 [NAME | NAME/WAY | NAME/WAY/FORM ...]

Prints a row for each model, way of reading it and form of replicas ("2", "4 mirrored", ...), and at
the end all as JSON. The ways: "live" (a function that trains a live model), "free" and "fixed" (the
model in a TF1 graph, written as a .meta with an unknown or a known batch). The names that begin
with hf_ need transformers below 5, hub_bert keras-hub.
"""

import inspect
import json
import os
import sys
import tempfile
import time

from subprograms import the_keras

STRATEGIES = ((2, False), (4, False), (2, True), (4, True))
PER_REPLICA = 2
MODELS = {}
GRAPHS = {}
LIBRARIES = {"hf": "transformers", "hub": "keras_hub"}  # by the beginning of a model's name
SIZES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
APPLICATIONS = (
    "ConvNeXtTiny DenseNet121 EfficientNetB0 EfficientNetV2B0 InceptionResNetV2 InceptionV3 "
    "MobileNet MobileNetV2 MobileNetV3Small NASNetMobile RegNetX002 ResNet50 ResNet50V2 ResNetRS50 "
    "VGG16 Xception").split()


def model(function):
  MODELS[function.__name__] = function
  return function


def application(name):
  def build(keras):
    size = SIZES.get(name, 32)
    made = getattr(keras.applications, name)
    options = {"weights": None, "input_shape": [size, size, 3], "classes": 5}
    if "include_preprocessing" in inspect.signature(made).parameters:
      options["include_preprocessing"] = False
    return (made(**options), ([size, size, 3], "float32"),
            ([], "int32"), "sparse_categorical_crossentropy")

  return build


MODELS.update({name: application(name) for name in APPLICATIONS})


def _masked(keras, *layers):
  """Recurrent layers over masked tokens."""
  found = keras.Sequential([
      keras.Input([6], dtype="int32"), keras.layers.Embedding(20, 8, mask_zero=True), *layers,
      keras.layers.Dense(3)])
  return found, ([6], "int32"), ([3], "float32"), "mse"


@model
def masked_lstm(keras):
  return _masked(keras, keras.layers.LSTM(8))


@model
def bidirectional_masked_lstm(keras):
  layers = keras.layers
  return _masked(
      keras, layers.Bidirectional(layers.LSTM(8, return_sequences=True)), layers.GRU(4))


@model
def transformer_block(keras):
  layers = keras.layers
  tokens = keras.Input([6], dtype="int32")
  value = layers.Embedding(20, 8)(tokens)
  for _ in range(2):
    value = layers.LayerNormalization()(
        value + layers.Dropout(0.1)(layers.MultiHeadAttention(2, 4, dropout=0.1)(value, value)))
    value = layers.LayerNormalization()(
        value + layers.Dense(8)(layers.Dense(16, activation="gelu")(value)))
  return (keras.Model(tokens, layers.Dense(3)(layers.GlobalAveragePooling1D()(value))),
          ([6], "int32"), ([3], "float32"), "mse")


@model
def u_net(keras):
  layers = keras.layers
  image = keras.Input([16, 16, 3])
  first = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
  second = layers.Conv2D(16, 3, padding="same", activation="relu")(layers.MaxPooling2D()(first))
  third = layers.Conv2D(16, 3, padding="same", activation="relu")(layers.MaxPooling2D()(second))
  up = layers.Concatenate()([layers.UpSampling2D()(third), second])
  up = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(up)
  up = layers.Concatenate()([up, first])
  return (keras.Model(image, layers.Conv2D(2, 1)(up)), ([16, 16, 3], "float32"),
          ([16, 16, 2], "float32"), "mse")


@model
def separable_convolutions(keras):
  layers = keras.layers
  return (keras.Sequential([
      keras.Input([16, 16, 3]), layers.SeparableConv2D(8, 3, activation="relu"),
      layers.DepthwiseConv2D(3), layers.BatchNormalization(), layers.GlobalMaxPooling2D(),
      layers.Dense(3)]), ([16, 16, 3], "float32"), ([3], "float32"), "mse")


def _hf(build):
  """A language model of transformers with a layer on top."""
  def made(keras):
    import transformers

    tokens = keras.Input([6], dtype="int32")
    found = keras.layers.Dense(3)(build(transformers, tokens)[:, 0])
    return keras.Model(tokens, found), ([6], "int32"), ([3], "float32"), "mse"

  return made


def _hf_bert(transformers, tokens):
  return transformers.TFBertModel(transformers.BertConfig(
      num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=16,
      vocab_size=20, max_position_embeddings=8))(tokens)[0]


def _hf_gpt2(transformers, tokens):
  return transformers.TFGPT2Model(transformers.GPT2Config(
      n_layer=2, n_embd=8, n_head=2, vocab_size=20, n_positions=8))(tokens)[0]


def _hf_t5(transformers, tokens):
  return transformers.TFT5Model(transformers.T5Config(
      num_layers=2, d_model=8, d_kv=4, num_heads=2, d_ff=16, vocab_size=20))(
          input_ids=tokens, decoder_input_ids=tokens)[0]


MODELS.update(hf_bert=_hf(_hf_bert), hf_gpt2=_hf(_hf_gpt2), hf_t5=_hf(_hf_t5))


@model
def hub_bert(keras):
  import keras_hub

  backbone = keras_hub.models.BertBackbone(
      vocabulary_size=20, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16,
      max_sequence_length=6)
  tokens = keras.Input([6], dtype="int32")
  ones, zeros = (keras.ops.ones_like(tokens), keras.ops.zeros_like(tokens))
  found = backbone({"token_ids": tokens, "padding_mask": ones, "segment_ids": zeros})
  return (keras.Model(tokens, keras.layers.Dense(3)(found["pooled_output"])), ([6], "int32"),
          ([3], "float32"), "mse")


def graph_model(function):
  GRAPHS[function.__name__] = function
  return function


@graph_model
def dlrm_with_unique(batch):
  """Sparse features of which each is looked up once, dense ones, and their products."""
  import tensorflow as tf

  v1 = tf.compat.v1
  ids = v1.placeholder(tf.int32, [batch, 3], name="x")
  dense = v1.placeholder(tf.float32, [batch, 4], name="dense")
  clicks = v1.placeholder(tf.float32, [batch, 1], name="y")
  table = v1.get_variable("table", [30, 8])
  different, where = tf.unique(tf.reshape(ids, [-1]))
  embedded = tf.reshape(tf.gather(tf.gather(table, different), where), [-1, 3, 8])
  bottom = tf.nn.relu(tf.matmul(dense, v1.get_variable("bottom", [4, 8])))
  features = tf.concat([embedded, bottom[:, None]], 1)
  products = tf.reshape(tf.matmul(features, features, transpose_b=True), [-1, 16])
  logits = tf.matmul(tf.concat([products, bottom], 1), v1.get_variable("top", [24, 1]))
  loss = tf.reduce_mean(
      tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=logits), name="loss")
  v1.train.AdagradOptimizer(0.1).minimize(loss, name="train")
  return ["train", "loss:0"]


@graph_model
def gan_with_two_optimizers(batch):
  """The noise is drawn for each example."""
  import tensorflow as tf

  v1 = tf.compat.v1
  real = v1.placeholder(tf.float32, [batch, 6], name="x")

  def network(value, name, out):
    with v1.variable_scope(name, reuse=v1.AUTO_REUSE):
      hidden = tf.nn.leaky_relu(tf.matmul(value, v1.get_variable("w0", [value.shape[-1], 8])))
      return tf.matmul(hidden, v1.get_variable("w1", [8, out]))

  fake = network(tf.random.normal([tf.shape(real)[0], 4]), "generator", 6)
  of_real, of_fake = (network(value, "critic", 1) for value in (real, fake))

  def cross_entropy(logits, target):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.fill(tf.shape(logits), target), logits=logits))

  losses = {"critic": cross_entropy(of_real, 1.0) + cross_entropy(of_fake, 0.0),
            "generator": cross_entropy(of_fake, 1.0)}
  tf.group(*(v1.train.AdamOptimizer(0.01, name=f"adam_{name}").minimize(
      loss, var_list=v1.trainable_variables(name)) for name, loss in losses.items()), name="train")
  return ["train", tf.identity(losses["critic"], name="loss").name]


def steps(keras, name, *batches):
  """Training steps of one live model at some batches, as ComputationGraphs."""
  import tensorflow as tf

  from placeto_tf.graphs import load_graph
  from placeto_tf.placements.keras_batches import KerasStep

  keras.utils.set_random_seed(1)
  found, inputs, targets, loss = MODELS[name](keras)
  found.compile("adam", loss)
  step = KerasStep(found)
  return [load_graph(step.trace(tuple(
      tf.TensorSpec([batch, *shape], dtype) for shape, dtype in (inputs, targets))))
          for batch in batches]


def reads(op, source):
  """Whether an op depends on another one."""
  from placeto_tf.graphs.variables import needed_by

  return source in needed_by([op])


def in_a_graph(keras, name, batch):
  """The model and its training step in a TF1 graph: (graph, fetches)."""
  import tensorflow as tf

  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    v1.set_random_seed(1)
    if name in GRAPHS:
      fetches = GRAPHS[name](batch)
      v1.global_variables_initializer()
      return graph, fetches
    found, (x_shape, x_dtype), (y_shape, y_dtype), loss = MODELS[name](keras)
    x = v1.placeholder(x_dtype, [batch, *x_shape], name="x")
    y = v1.placeholder(y_dtype, [batch, *y_shape], name="y")
    predicted = found(x, training=True)
    value = tf.reduce_mean(
        tf.keras.losses.sparse_categorical_crossentropy(y, predicted) if "sparse" in loss else
        tf.square(predicted - y), name="loss")
    # Those of the model's own input are others.
    updates = [each for each in getattr(found, "updates", ())
               if hasattr(each, "name") and reads(getattr(each, "op", each), x.op)]
    train = v1.train.AdamOptimizer(0.001).minimize(value)
    with tf.control_dependencies([train, *updates]):
      tf.no_op(name="train")
    v1.global_variables_initializer()
  return graph, ["train", "loss:0"]


def compared(keras, name, way, replicas, mirrored):
  import placeto_tf as placeto
  from placeto_tf.replication import replicate
  from placeto_tf.replication.batches import ReplicaSource

  batch = PER_REPLICA * replicas
  if way == "live":
    whole, part = steps(keras, name, batch, PER_REPLICA)
    made = replicate(part, replicas, whole=whole, mirrored=mirrored)
  else:
    graph, fetches = in_a_graph(keras, name, None if way == "free" else batch)
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder, graph.as_default():
      path = os.path.join(folder, "graph.meta")
      tf.compat.v1.train.export_meta_graph(path)
      source = ReplicaSource(path, {"fetches": fetches, "batch_size": batch} if way == "free" else {
          "fetches": fetches})
    whole, made = source.graph, source.replicas(replicas, mirrored)
    if made.global_batch != batch:
      return made, f"exact at a batch that grew from {batch} to {made.global_batch}", None
  found = placeto.compare_training(whole, made, steps=2, time_limit_s=300)
  if not found.checked:
    return made, f"not checked: {found.reason}", found
  own = len(made.own_statistics)
  return made, f"replica's own statistics in {own} ops" if own else "exact", found


def main(version, *names):
  keras = the_keras(version)
  keras.backend.set_floatx("float32")
  rows = []
  for name, way, replicas, mirrored in wanted(version, names or [*MODELS, *GRAPHS]):
    keras.backend.clear_session()
    started = time.time()
    strategy, difference = f"{replicas}{' mirrored' if mirrored else ''}", None
    try:
      _, said, found = compared(keras, name, way, replicas, mirrored)
      difference = found.largest_difference if found else None
    except Exception as error:  # pylint: disable=broad-except  told in the table
      said = f"{type(error).__name__}: {error}"
    rows.append([name, version, way, strategy, said, difference, round(time.time() - started, 1)])
    print(*rows[-1], sep=" | ", flush=True)
  print(json.dumps(rows))


def wanted(version, names):
  """(name, way, replicas, mirrored) of what is named."""
  for text in names:
    name, _, rest = text.partition("/")
    way, _, strategy = rest.partition("/")
    ways = ("free", "fixed") if name in GRAPHS else ("live", "free", "fixed") if (
        version == "2") else ("live",)
    for each in ways:
      for replicas, mirrored in STRATEGIES:
        asked = f"{replicas}{' mirrored' if mirrored else ''}"
        if way in ("", each) and strategy in ("", asked) and (
            each != "live" or not mirrored):  # a function's variables are shared
          yield name, each, replicas, mirrored


if __name__ == "__main__":
  main(*sys.argv[1:])
