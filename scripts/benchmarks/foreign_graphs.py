"""Writes training graphs of other projects' models as MetaGraphs, for `evaluate.py --graphs`.

  scripts/with_env pip install 'transformers==4.57.*' 'keras-hub==0.32.*' 'keras-rs==0.4.*'
  scripts/with_env python scripts/benchmarks/foreign_graphs.py --out=runs/foreign_graphs

Models have random weights. A graph is the step that `fit` runs (loss, gradients, optimizer and
metrics), traced for one batch. --models=NAME:key=value,... chooses models and their sizes.
docs/results/foreign_graphs.md has the results of policies and searches, with TensorFlow 2.21.0,
Keras 3.15.1, tf_keras 2.21.0, transformers 4.57.6, keras-hub 0.32.0, keras-rs 0.4.0 and
TensorFlow GNN 1.0.3.
"""

from __future__ import annotations

import gc
import os
from typing import Any, Callable, Dict, Tuple

from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_string("out", None, "Directory of the results: NAME.meta of each model.",
                    required=True)
flags.DEFINE_list("models", None, "NAME[:key=value...] of models; default: all.")

Built = Tuple[Any, Tuple[Any, ...]]  # a compiled model, the specs of its batch
_MODELS: Dict[str, Callable[..., Built]] = {}
_SPARSE = "sparse_categorical_crossentropy"


def _model(build: Callable[..., Built]) -> Callable[..., Built]:
  _MODELS[build.__name__] = build
  return build


def _spec(dtype: str, *shape: int) -> Any:
  import tensorflow as tf

  return tf.TensorSpec(shape, dtype)


@_model
def bidirectional_lstm(
    batch: int = 32, words: int = 100, units: int = 256, layers: int = 4,
    vocabulary: int = 20_000) -> Built:
  """Keras: tags words by a stack of bidirectional layers, whose steps are loops; padding masked."""
  import keras

  model = keras.Sequential([
      keras.Input([words], dtype="int32"),
      keras.layers.Embedding(vocabulary, units, mask_zero=True),
      *(keras.layers.Bidirectional(keras.layers.LSTM(units, return_sequences=True))
        for _ in range(layers)),
      keras.layers.Dense(50, "softmax")])
  model.compile("adam", _SPARSE, metrics=["accuracy"])
  return model, (_spec("int32", batch, words), _spec("int32", batch, words))


@_model
def clip(batch: int = 32, layers: int = 12, words: int = 77, image: int = 224) -> Built:
  """transformers: CLIP, a tower for images (ViT-B/32) and one for texts; contrastive loss."""
  import tf_keras
  import transformers

  model = transformers.TFCLIPModel(transformers.CLIPConfig(
      text_config={"num_hidden_layers": layers},
      vision_config={"num_hidden_layers": layers, "image_size": image}))
  model.compile(tf_keras.optimizers.Adam(1e-4))  # its own loss
  return model, ({
      "input_ids": _spec("int32", batch, words), "attention_mask": _spec("int32", batch, words),
      "pixel_values": _spec("float32", batch, 3, image, image)},)


@_model
def deeplab(batch: int = 16, image: int = 256) -> Built:
  """keras-hub: DeepLabV3+ on ResNet-50, which labels each pixel."""
  import keras
  import keras_hub

  encoder = keras_hub.models.ResNetBackbone(
      [64], [7], [64, 128, 256, 512], [3, 4, 6, 3], [1, 2, 2, 2], "bottleneck_block",
      image_shape=(image, image, 3))
  backbone = keras_hub.models.DeepLabV3Backbone(
      encoder, "P5", upsampling_size=8, dilation_rates=[6, 12, 18], low_level_feature_key="P2",
      image_shape=(image, image, 3))
  model = keras_hub.models.DeepLabV3ImageSegmenter(backbone, 21, "softmax")
  model.compile(keras.optimizers.SGD(0.01, momentum=0.9), _SPARSE, metrics=["accuracy"])
  return model, (_spec("float32", batch, image, image, 3), _spec("int32", batch, image, image))


@_model
def densenet(batch: int = 32, image: int = 224) -> Built:
  """keras.applications: DenseNet-121."""
  import keras

  model = keras.applications.DenseNet121(weights=None, input_shape=(image, image, 3))
  model.compile(keras.optimizers.SGD(0.1, momentum=0.9), _SPARSE, metrics=["accuracy"])
  return model, (_spec("float32", batch, image, image, 3), _spec("int32", batch))


@_model
def dlrm(
    batch: int = 2048, tables: int = 26, rows: int = 100_000, width: int = 128) -> Built:
  """keras-rs: clicks by DLRM's dot products of 26 embeddings, with DCN's crosses beside them."""
  import keras
  import keras_rs

  def dense(*units: int) -> Any:
    return keras.Sequential([keras.layers.Dense(each, "relu") for each in units])

  inputs = {f"id_{i}": keras.Input([], dtype="int32", name=f"id_{i}") for i in range(tables)}
  inputs["numbers"] = keras.Input([13], name="numbers")
  features = [keras.layers.Embedding(rows, width)(inputs[f"id_{i}"]) for i in range(tables)]
  features.append(dense(512, 256, width)(inputs["numbers"]))
  products = keras_rs.layers.DotInteraction()(features)
  crossed = together = keras.layers.Concatenate()(features)
  for _ in range(3):
    crossed = keras_rs.layers.FeatureCross(projection_dim=512)(together, crossed)
  hidden = dense(1024, 1024, 512, 256)(keras.layers.Concatenate()([products, crossed]))
  model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
  model.compile("adagrad", "binary_crossentropy", metrics=["auc"])
  return model, ({
      "numbers": _spec("float32", batch, 13),
      **{f"id_{i}": _spec("int32", batch) for i in range(tables)}}, _spec("float32", batch, 1))


@_model
def graph_network(
    batch: int = 32, papers: int = 1024, edges: int = 2048, units: int = 128, rounds: int = 4
) -> Built:
  """TF-GNN: rounds of MtAlbis over sampled papers, authors, institutions and fields of study."""
  import tensorflow as tf
  import tensorflow_gnn as tfgnn
  from tensorflow_gnn.models import mt_albis

  sizes = {"paper": papers, "author": papers, "institution": papers // 4, "field": papers // 2}
  pairs = [("paper", "paper"), ("author", "paper"), ("author", "institution"), ("paper", "field")]
  pairs += [(target, source) for source, target in pairs]
  one = {"sizes_spec": _spec("int32", 1)}
  spec = tfgnn.GraphTensorSpec.from_piece_specs(
      tfgnn.ContextSpec.from_field_specs(**one),
      {name: tfgnn.NodeSetSpec.from_field_specs(
          features_spec={tfgnn.HIDDEN_STATE: _spec("float32", size, units)}, **one)
       for name, size in sizes.items()},
      {f"edges_{i}": tfgnn.EdgeSetSpec.from_field_specs(
          adjacency_spec=tfgnn.AdjacencySpec.from_incident_node_sets(
              *pair, _spec("int32", edges)), **one) for i, pair in enumerate(pairs)})
  inputs = graph = tf.keras.Input(type_spec=spec)
  for _ in range(rounds):
    graph = mt_albis.MtAlbisGraphUpdate(
        units=units, message_dim=units, receiver_tag=tfgnn.TARGET, attention_type="multi_head",
        next_state_type="residual", state_dropout_rate=0.1, l2_regularization=1e-5)(graph)
  seeds = graph.node_sets["paper"][tfgnn.HIDDEN_STATE][:batch]
  model = tf.keras.Model(inputs, tf.keras.layers.Dense(349, "softmax")(seeds))
  model.compile("adam", _SPARSE)
  return model, (spec, _spec("int32", batch))


@_model
def mixtral(
    batch: int = 16, words: int = 128, width: int = 512, layers: int = 8,
    vocabulary: int = 16_000) -> Built:
  """keras-hub: Mixtral, a language model with a mixture of experts in each layer."""
  import keras
  import keras_hub

  backbone = keras_hub.models.MixtralBackbone(
      vocabulary_size=vocabulary, num_layers=layers, num_query_heads=8, hidden_dim=width,
      intermediate_dim=2 * width, num_key_value_heads=4, num_experts=8, top_k=2)
  model = keras_hub.models.MixtralCausalLM(backbone)
  model.compile(keras.optimizers.Adam(1e-4), keras.losses.SparseCategoricalCrossentropy(True),
                weighted_metrics=["accuracy"])
  tokens = _spec("int32", batch, words)
  return model, ({"token_ids": tokens, "padding_mask": tokens}, tokens)


@_model
def t5(batch: int = 16, words: int = 128, layers: int = 6) -> Built:
  """transformers: T5-small, an encoder and a decoder."""
  import tf_keras
  import transformers

  model = transformers.TFT5ForConditionalGeneration(
      transformers.T5Config(num_layers=layers, decoder_start_token_id=0))
  model.compile(tf_keras.optimizers.Adam(1e-4))  # its own loss
  tokens = _spec("int32", batch, words)
  return model, ({"input_ids": tokens, "attention_mask": tokens, "labels": tokens},)


@_model
def wav2vec2(batch: int = 16, samples: int = 32_000, layers: int = 12) -> Built:
  """transformers: wav2vec 2.0, which hears two seconds of speech and says what kind it is."""
  import tf_keras
  import transformers

  model = transformers.TFWav2Vec2ForSequenceClassification(
      transformers.Wav2Vec2Config(num_hidden_layers=layers, num_labels=12, layerdrop=0.0))
  model.compile(tf_keras.optimizers.Adam(1e-4),
                tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  return model, ({"input_values": _spec("float32", batch, samples)}, _spec("int32", batch))


def training_graph(model: Any, batch: Tuple[Any, ...]) -> Any:
  """A MetaGraphDef of the step that `fit` runs, whose train op waits for all of it.

  Args:
    model: compiled, of Keras 2 or 3.
    batch: (inputs, targets) or (inputs,), as TensorSpecs.
  """
  import tensorflow as tf

  from placeto_tf.graphs import load_graph
  from placeto_tf.placements import keras_batches

  graph = load_graph(keras_batches.KerasStep(model).trace(batch))
  assert graph.source is not None
  meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph.source.graph_def)
  ends = dict.fromkeys(name.partition(":")[0] for name in graph.fetches)
  meta_graph.graph_def.node.add(name="train_op", op="NoOp", input=[f"^{name}" for name in ends])
  meta_graph.collection_def["train_op"].node_list.value.append("train_op")
  return meta_graph


def main() -> None:
  """Writes the graph of each model and says how large it is."""
  from placeto_tf.errors import PlacetoError
  from placeto_tf.files import outputs
  from placeto_tf.graphs import load_graph

  entry_point.import_tensorflow_quietly()
  os.makedirs(FLAGS.out, exist_ok=True)
  for text in FLAGS.models or _MODELS:
    name, *sizes = text.split(":")
    if name not in _MODELS:
      raise PlacetoError(f"there is no model {name!r}; choose one of {', '.join(_MODELS)}")
    options = dict(size.split("=") for size in sizes)
    meta_graph = training_graph(
        *_MODELS[name](**{key: int(value) for key, value in options.items()}))
    path = os.path.join(FLAGS.out, f"{name}.meta")
    outputs.write(path, meta_graph.SerializeToString(), error_type=PlacetoError)
    print(f"{path}: {load_graph(path).num_ops:,} ops", flush=True)
    gc.collect()  # a model's variables may be gigabytes


if __name__ == "__main__":
  entry_point.run_program(main)
