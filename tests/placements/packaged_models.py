"""Run as a program: what `batch_size=` and `data=` do for a BERT that others wrote, as JSON.

Argument: the Keras ("2": transformers, "3": keras-hub).
"""

import json
import sys

import keras_fit
import numpy as np
import tensorflow as tf

import keras_proof
import placeto_tf as placeto

BATCH, WORDS = 4, 6
OPTIONS = dict(max_evaluations=5)


def bert_of_transformers(keras):
  """A classifier with the loss that it brings along."""
  import transformers

  config = transformers.BertConfig(
      vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
      max_position_embeddings=32)
  model = transformers.TFBertForSequenceClassification(config)
  model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  return model


def bert_of_keras_hub(keras):
  """A classifier without a preprocessor."""
  import keras_hub

  backbone = keras_hub.models.BertBackbone(
      vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8,
      max_sequence_length=32)
  model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)
  model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  return model


def main(version):
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  keras = keras_proof.the_keras(version)
  build = bert_of_transformers if version == "2" else bert_of_keras_hub
  asked = keras_fit.error_of(
      lambda: placeto.compile_placed(build(keras), "local", batch_size=BATCH, **OPTIONS))
  told = eval(asked.rpartition("data=")[2], {"tf": tf})
  inputs = {name: np.ones([BATCH, WORDS], np.int32) for name in told[0]}
  targets = np.zeros([BATCH], np.int32)
  model = build(keras)
  training = placeto.compile_placed(model, "local", data=(inputs, targets), **OPTIONS)
  history = model.fit(inputs, targets, batch_size=BATCH, epochs=3, verbose=0).history
  print(json.dumps({
      "asked": asked, "inputs": sorted(told[0]), "losses": history["loss"],
      "told": placeto.plan_training(build(keras), "v100:2", data=told, **OPTIONS).batch_size,
      "steps": [step.batch_size for step in training.steps], "verdict": training.verdict}))


if __name__ == "__main__":
  main(*sys.argv[1:])
