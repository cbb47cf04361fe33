"""AmoebaNet-D, an image classifier of evolved cells."""

from __future__ import annotations

from typing import Sequence, Tuple

import tensorflow as tf

from placeto_tf.zoo import convolutional as layers
from placeto_tf.zoo.registry import Model, integer, model

v1 = tf.compat.v1

_CLASSES = 1000  # ImageNet

# A cell has states: 0 and 1 are its inputs, the last cell's output first; each pair of
# (state, operation) makes one more, the sum of the two.
_Cell = Sequence[Tuple[int, str]]
_NORMAL: _Cell = (
    (1, "conv_1x1"), (1, "max_pool_3x3"),
    (1, "identity"), (0, "conv_1x7_7x1"),
    (0, "conv_1x1"), (0, "conv_1x7_7x1"),
    (2, "max_pool_3x3"), (2, "identity"),
    (1, "avg_pool_3x3"), (5, "conv_1x1"))
_NORMAL_OUTPUT = (0, 3, 4, 6)
_REDUCTION: _Cell = (
    (0, "max_pool_2x2"), (0, "max_pool_3x3"),
    (2, "identity"), (1, "conv_3x3"),
    (2, "conv_1x7_7x1"), (2, "max_pool_3x3"),
    (3, "identity"), (1, "max_pool_2x2"),
    (2, "avg_pool_3x3"), (3, "conv_1x1"))
_REDUCTION_OUTPUT = (4, 5, 6)


@model(
    "amoebanet", batch=integer(32), image=integer(224, minimum=32), cells=integer(18, minimum=3),
    filters=integer(208, minimum=16))
def amoebanet(batch: int, image: int, cells: int, filters: int) -> Model:
  """Builds AmoebaNet-D (Real et al. 2018, arXiv:1802.01548), as Huang et al. 2018 (GPipe) train it.

  Args:
    batch: images of a step.
    image: rows and columns of an image.
    cells: normal cells, in three stages with a reduction before each but the first.
    filters: channels that the first stage puts out.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  images = v1.placeholder(tf.float32, [batch, image, image, 3], name="images")
  labels = v1.placeholder(tf.int32, [batch], name="labels")
  norms = layers.BatchNorms()
  width = filters // 4
  with v1.variable_scope("stem"):
    last = layers.conv(norms, "conv", images, width, (3, 3), (2, 2), relu=False)
  before = last
  names = ["stem_reduction_0", "stem_reduction_1"]
  for stage in range(3):
    if stage:
      names.append(f"reduction_{stage}")
    names += [f"cell_{i}" for i in range(stage * cells // 3, (stage + 1) * cells // 3)]
  for name in names:
    reduces = "reduction" in name
    width = 2 * width if reduces else width
    with v1.variable_scope(name):
      before, last = last, _cell(norms, before, last, width, reduces)
  loss = layers.classify(last, labels, _CLASSES)
  return Model(loss=loss, feeds=(images, labels), updates=norms.updates)


def _cell(
    norms: layers.BatchNorms, before: tf.Tensor, last: tf.Tensor, width: int, reduces: bool
) -> tf.Tensor:
  """Builds one cell on the outputs of the two cells before it."""
  shape, output = (_REDUCTION, _REDUCTION_OUTPUT) if reduces else (_NORMAL, _NORMAL_OUTPUT)
  states = [
      layers.conv(norms, "last", last, width),
      layers.fit(norms, "before", before, last, width)]
  for left, right in zip(shape[::2], shape[1::2]):
    halves = []
    for side, (state, operation) in (("left", left), ("right", right)):
      stride = 2 if reduces and state < 2 else 1
      with v1.variable_scope(f"state_{len(states)}/{side}"):
        halves.append(_operation(norms, operation, states[state], stride))
    states.append(halves[0] + halves[1])
  return tf.concat([states[i] for i in output], axis=3)


def _operation(
    norms: layers.BatchNorms, operation: str, images: tf.Tensor, stride: int) -> tf.Tensor:
  width = layers.channels(images)
  if operation == "identity":
    return images if stride == 1 else layers.halve(norms, operation, images, width)
  kind, _, size = operation.partition("_pool_")
  if size:
    return layers.pool(operation, kind, images, int(size[0]), stride)
  if operation == "conv_1x1":
    return layers.conv(norms, operation, images, width, stride=(stride, stride))
  # The larger convolutions work on a quarter of the channels.
  images = layers.conv(norms, "narrow", images, max(1, width // 4))
  narrow = layers.channels(images)
  if operation == "conv_3x3":
    images = layers.conv(norms, "conv_3x3", images, narrow, (3, 3), (stride, stride))
  else:
    images = layers.conv(norms, "conv_1x7", images, narrow, (1, 7), (1, stride))
    images = layers.conv(norms, "conv_7x1", images, narrow, (7, 1), (stride, 1))
  return layers.conv(norms, "widen", images, width)
