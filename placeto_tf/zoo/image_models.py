"""Image classifiers of `keras.applications`, trained with softmax cross-entropy."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import Any, Iterator

from placeto_tf.errors import SetupError
from placeto_tf.zoo.registry import Model, integer, model

_CLASSES = 1000  # ImageNet


# The minimum sizes are those that keras.applications accepts.
@model("inception_v3", batch=integer(32), image=integer(299, minimum=75))
def inception_v3(batch: int, image: int) -> Model:
  """Builds Inception-V3 (Szegedy et al. 2015, arXiv:1512.00567).

  Args:
    batch: images of a step.
    image: rows and columns of an image.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  return _classifier("InceptionV3", batch, image)


@model("resnet50", batch=integer(32), image=integer(224, minimum=32))
def resnet50(batch: int, image: int) -> Model:
  """Builds ResNet-50 (He et al. 2015, arXiv:1512.03385).

  Args:
    batch: images of a step.
    image: rows and columns of an image.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  return _classifier("ResNet50", batch, image)


@model("nasnet_mobile", batch=integer(32), image=integer(224, minimum=32))
def nasnet_mobile(batch: int, image: int) -> Model:
  """Builds NASNet-A (4 @ 1056), the mobile size (Zoph et al. 2017, arXiv:1707.07012).

  Args:
    batch: images of a step.
    image: rows and columns of an image.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  return _classifier("NASNetMobile", batch, image)


@model("nasnet_large", batch=integer(32), image=integer(331, minimum=32))
def nasnet_large(batch: int, image: int) -> Model:
  """Builds NASNet-A (6 @ 4032), the large size (Zoph et al. 2017, arXiv:1707.07012).

  Args:
    batch: images of a step.
    image: rows and columns of an image.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  return _classifier("NASNetLarge", batch, image)


def _classifier(architecture: str, batch: int, image: int) -> Model:
  """`keras.applications.<architecture>` with random weights, in training mode."""
  import tensorflow as tf

  keras = legacy_keras()
  v1 = tf.compat.v1
  images = v1.placeholder(tf.float32, [batch, image, image, 3], name="images")
  labels = v1.placeholder(tf.int32, [batch], name="labels")
  with warnings.catch_warnings(), _quiet_log(tf):
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


@contextlib.contextmanager
def _quiet_log(tf: Any) -> Iterator[None]:
  """Hides TensorFlow's notes on deprecated calls that Keras makes, not the user."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)


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
  import tensorflow as tf

  release = ".".join(tf.__version__.split(".")[:2])
  raise SetupError(
      f"the zoo builds its image models with Keras 2 and found {found}; install the legacy Keras "
      f"with: pip install 'tf-keras~={release}.0'") from missing
