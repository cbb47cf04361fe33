"""Image classifiers of `keras.applications`, trained with softmax cross-entropy."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from typing import Any

import tensorflow as tf

from placeto_tf.errors import SetupError
from placeto_tf.zoo.registry import Model, integer, model

v1 = tf.compat.v1

_CLASSES = 1000  # ImageNet
# Name -> name in keras.applications, pixels a side, and the least that keras.applications accepts.
_ARCHITECTURES = {
    "inception_v3": ("InceptionV3", 299, 75),  # Szegedy et al. 2015, arXiv:1512.00567
    "resnet50": ("ResNet50", 224, 32),  # He et al. 2015, arXiv:1512.03385
    # NASNet-A (4 @ 1056) and (6 @ 4032), Zoph et al. 2017, arXiv:1707.07012
    "nasnet_mobile": ("NASNetMobile", 224, 32),
    "nasnet_large": ("NASNetLarge", 331, 32)}


def _classifier(architecture: str, batch: int, image: int) -> Model:
  """Builds a model of `keras.applications` with random weights, in training mode.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  keras = legacy_keras()
  images = v1.placeholder(tf.float32, [batch, image, image, 3], name="images")
  labels = v1.placeholder(tf.int32, [batch], name="labels")
  logger = tf.get_logger()
  with warnings.catch_warnings(), contextlib.ExitStack() as after:
    # Keras, not the user, makes the deprecated calls that TensorFlow logs here.
    after.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.ERROR)
    # Applications take no `training` argument, and calling the finished model again with one
    # would put every layer into the graph twice: the learning phase is the way to build once.
    warnings.filterwarnings("ignore", message=".*set_learning_phase.*")
    keras.backend.set_learning_phase(1)
    network = getattr(keras.applications, architecture)(
        weights=None,
        input_tensor=images,
        input_shape=(image, image, 3),
        classes=_CLASSES,
        classifier_activation=None,
    )
  cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=network.outputs[0], name="cross_entropy")
  loss = tf.reduce_mean(cross_entropy, name="loss")
  return Model(loss=loss, feeds=(images, labels), updates=network.updates)


def legacy_keras() -> Any:
  """Returns Keras 2: the package `tf_keras`, or `keras` where that is version 2 (TensorFlow 2.15).

  `tf.keras` may be either: that depends on the environment at TensorFlow's import.

  Raises:
    SetupError: neither is installed.
  """
  try:
    import tf_keras
    return tf_keras
  except ImportError as error:
    missing = error
  try:
    import keras
    if keras.__version__.startswith("2."):
      return keras
    found = f"Keras {keras.__version__}"
  except ImportError:
    found = "no Keras"
  release = ".".join(tf.__version__.split(".")[:2])
  raise SetupError(
      f"the zoo builds its image models with Keras 2 and found {found}; install the legacy Keras "
      f"with: pip install 'tf-keras~={release}.0'") from missing


for _name, (_architecture, _side, _least) in _ARCHITECTURES.items():
  model(_name, batch=integer(32), image=integer(_side, minimum=_least))(
      functools.partial(_classifier, _architecture))
