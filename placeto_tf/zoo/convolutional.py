"""Layers of plain TensorFlow ops that the convolutional cells share.

Images are [B, rows, columns, channels] float32. Every layer that changes values is ReLU, then
convolution, then batch norm, as in the NASNet, AmoebaNet and ENAS papers.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import tensorflow as tf

v1 = tf.compat.v1

_DECAY = 0.9  # of the batch norms' moving averages


def variable(
    name: str, shape: Sequence[int], initializer: tf.initializers.Initializer,
    trainable: bool = True) -> tf.Variable:
  """Makes a resource variable in the current variable scope.

  Args:
    name, shape: of the variable.
    initializer: of its values.
    trainable: whether an optimizer updates it.

  Returns:
    The float32 variable.
  """
  return v1.get_variable(
      name, shape, tf.float32, initializer, trainable=trainable, use_resource=True)


def kernel(name: str, shape: Sequence[int]) -> tf.Variable:
  """Makes the weights of a convolution, normally distributed by its fan-in.

  Args:
    name: of the variable.
    shape: [rows, columns, channels in, channels out].

  Returns:
    The float32 variable.
  """
  return variable(name, shape, v1.variance_scaling_initializer(2.0))


class BatchNorms:
  """Makes batch norms in training mode and gathers the updates of their moving averages."""

  def __init__(self) -> None:
    self.updates: List[tf.Operation] = []

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    """Normalises over the batch; variables go into the current variable scope."""
    zeros, ones = v1.zeros_initializer(), v1.ones_initializer()
    with v1.variable_scope("norm"):
      shape = [channels(images)]
      scale, offset = variable("scale", shape, ones), variable("offset", shape, zeros)
      normed, mean, variance = v1.nn.fused_batch_norm(
          images, scale, offset, epsilon=1e-3, is_training=True)
      for name, now, initializer in (("mean", mean, zeros), ("variance", variance, ones)):
        moving = variable(f"moving_{name}", shape, initializer, trainable=False)
        self.updates.append(
            moving.assign_sub((moving - now) * (1 - _DECAY), read_value=False))
    return normed


def channels(images: tf.Tensor) -> int:
  """Returns the number of channels: the last dimension."""
  return images.shape.as_list()[-1]


def conv(
    norms: BatchNorms, name: str, images: tf.Tensor, filters: int, size: Tuple[int, int] = (1, 1),
    stride: Tuple[int, int] = (1, 1), relu: bool = True) -> tf.Tensor:
  """Applies ReLU, a convolution and batch norm.

  Args:
    norms: makes the batch norm.
    name: variable scope.
    images: [B, rows, columns, channels].
    filters: channels out.
    size: of the kernel.
    stride: of the convolution; padding is "SAME".
    relu: whether there is a ReLU.

  Returns:
    [B, rows / stride, columns / stride, filters].
  """
  with v1.variable_scope(name):
    if relu:
      images = tf.nn.relu(images)
    weights = kernel("kernel", [*size, channels(images), filters])
    return norms(tf.nn.conv2d(images, weights, strides=list(stride), padding="SAME"))


def separable(
    norms: BatchNorms, name: str, images: tf.Tensor, filters: int, size: int,
    stride: int = 1) -> tf.Tensor:
  """Applies ReLU, depthwise and pointwise convolution, and batch norm, twice.

  Args:
    norms: makes the batch norms.
    name: variable scope.
    images: [B, rows, columns, channels].
    filters: channels out.
    size: of the square kernels.
    stride: of the first depthwise convolution; the second has none.

  Returns:
    [B, rows / stride, columns / stride, filters].
  """
  with v1.variable_scope(name):
    for part, step in (("first", stride), ("second", 1)):
      with v1.variable_scope(part):
        images = tf.nn.relu(images)
        images = tf.nn.depthwise_conv2d(
            images, kernel("depthwise", [size, size, channels(images), 1]), [1, step, step, 1],
            padding="SAME")
        images = tf.nn.conv2d(
            images, kernel("pointwise", [1, 1, channels(images), filters]), strides=1,
            padding="SAME")
        images = norms(images)
  return images


def pool(name: str, kind: str, images: tf.Tensor, size: int, stride: int = 1) -> tf.Tensor:
  """Pools square windows.

  Args:
    name: of the op.
    kind: "avg" or "max".
    images: [B, rows, columns, channels].
    size: of a window.
    stride: of the windows; padding is "SAME".

  Returns:
    [B, rows / stride, columns / stride, channels].
  """
  function = {"avg": tf.nn.avg_pool2d, "max": tf.nn.max_pool2d}[kind]
  return function(images, ksize=size, strides=stride, padding="SAME", name=name)


def halve(norms: BatchNorms, name: str, images: tf.Tensor, filters: int) -> tf.Tensor:
  """Halves rows and columns: two convolutions on every other pixel, the second shifted by one.

  The NASNet papers call it factorised reduction.

  Args:
    norms: makes the batch norm.
    name: variable scope.
    images: [B, rows, columns, channels].
    filters: channels out.

  Returns:
    [B, rows / 2, columns / 2, filters].
  """
  with v1.variable_scope(name):
    images = tf.nn.relu(images)
    shifted = tf.pad(images, [[0, 0], [0, 1], [0, 1], [0, 0]])[:, 1:, 1:, :]
    width = channels(images)
    halves = []
    for part, view, count in (
        ("even", images, filters // 2), ("odd", shifted, filters - filters // 2)):
      # A pool of one pixel drops every other one.
      view = tf.nn.avg_pool2d(view, ksize=1, strides=2, padding="SAME")
      halves.append(tf.nn.conv2d(
          view, kernel(part, [1, 1, width, count]), strides=1, padding="SAME"))
    return norms(tf.concat(halves, axis=3))


def fit(
    norms: BatchNorms, name: str, images: tf.Tensor, like: tf.Tensor, filters: int) -> tf.Tensor:
  """Gives images the channels of a cell and the size of other images.

  Args:
    norms: makes the batch norm.
    name: variable scope.
    images: [B, rows, columns, channels], of the size of `like` or twice that.
    like: images of the wanted size.
    filters: channels out.

  Returns:
    Images of the size of `like`, with `filters` channels.
  """
  if images.shape[1] != like.shape[1]:
    return halve(norms, name, images, filters)
  return conv(norms, name, images, filters)


def classify(images: tf.Tensor, labels: tf.Tensor, classes: int) -> tf.Tensor:
  """Classifies images: global average, one matrix, softmax.

  Args:
    images: [B, rows, columns, channels].
    labels: [B] int32.
    classes: number of classes.
  """
  with v1.variable_scope("classifier"):
    means = tf.reduce_mean(tf.nn.relu(images), axis=[1, 2])
    logits = tf.nn.bias_add(
        tf.matmul(means, kernel("kernel", [channels(images), classes])),
        variable("bias", [classes], v1.zeros_initializer()))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return tf.reduce_mean(losses, name="loss")
