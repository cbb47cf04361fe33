"""Networks sampled from the search spaces of ENAS: convolutional and recurrent cells.

Pham et al. 2018 (arXiv:1802.03268), sections 2.2 and 2.4 for the spaces.
"""

from __future__ import annotations

import random
from typing import List, Tuple

import tensorflow as tf

from placeto_tf.zoo import convolutional as layers
from placeto_tf.zoo import recurrent
from placeto_tf.zoo.registry import Model, integer, model

v1 = tf.compat.v1

_OPERATIONS = ("sep_3x3", "sep_5x5", "avg_pool", "max_pool", "identity")
_ACTIVATIONS = {
    "tanh": tf.tanh, "relu": tf.nn.relu, "sigmoid": tf.sigmoid, "identity": lambda value: value}

# (input, operation) twice a node; inputs 0 and 1 are the last two cells, the last one first.
_ConvCell = List[Tuple[Tuple[int, str], Tuple[int, str]]]


@model(
    "enas_conv", batch=integer(128), image=integer(32, minimum=8), cell=integer(0, minimum=0),
    nodes=integer(5), cells=integer(5, minimum=3), filters=integer(64),
    classes=integer(10))
def enas_conv(
    batch: int, image: int, cell: int, nodes: int, cells: int, filters: int, classes: int
) -> Model:
  """Builds a convolutional network of sampled cells.

  Args:
    batch: images of a step.
    image: rows and columns of an image.
    cell: the seed from which a normal and a reduction cell are sampled.
    nodes: of each cell.
    cells: of the network; two of them reduce, at a third and two thirds of the depth, and
      double the filters.
    filters: channels of the first cell.
    classes: number of classes.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  images = v1.placeholder(tf.float32, [batch, image, image, 3], name="images")
  labels = v1.placeholder(tf.int32, [batch], name="labels")
  rng = random.Random(cell)
  normal, reduction = _sample_conv_cell(rng, nodes), _sample_conv_cell(rng, nodes)
  norms = layers.BatchNorms()
  with v1.variable_scope("stem"):
    before = last = layers.conv(norms, "conv", images, filters, (3, 3), relu=False)
  for i in range(cells):
    reduces = i in (cells // 3, 2 * cells // 3)
    filters = 2 * filters if reduces else filters
    with v1.variable_scope(f"cell_{i}"):
      shape = reduction if reduces else normal
      before, last = last, _conv_cell(norms, shape, before, last, filters, 2 if reduces else 1)
  loss = layers.classify(last, labels, classes)
  return Model(loss=loss, feeds=(images, labels), updates=norms.updates)


def _sample_conv_cell(rng: random.Random, nodes: int) -> _ConvCell:
  """Samples two earlier states and two operations for every node."""
  def half(states: int) -> Tuple[int, str]:
    return rng.randrange(states), rng.choice(_OPERATIONS)

  return [(half(2 + node), half(2 + node)) for node in range(nodes)]


def _conv_cell(
    norms: layers.BatchNorms, shape: _ConvCell, before: tf.Tensor, last: tf.Tensor, filters: int,
    stride: int) -> tf.Tensor:
  """Builds a cell; returns the concatenated states that no node of the cell reads."""
  read = {state for halves in shape for state, _ in halves}
  # An input that no node reads gets no layer, which could not be trained.
  states = [
      layers.conv(norms, "last", last, filters) if 0 in read else None,
      layers.fit(norms, "before", before, last, filters) if 1 in read else None]
  for node, halves in enumerate(shape):
    parts = []
    for side, (state, operation) in zip(("left", "right"), halves):
      with v1.variable_scope(f"node_{node}/{side}"):
        parts.append(_conv_operation(
            norms, operation, states[state], filters, stride if state < 2 else 1))
    with v1.name_scope(f"node_{node}/"):
      states.append(parts[0] + parts[1])
  loose = [state for i, state in enumerate(states) if i >= 2 and i not in read]
  return loose[0] if len(loose) == 1 else tf.concat(loose, axis=3)


def _conv_operation(
    norms: layers.BatchNorms, operation: str, images: tf.Tensor, filters: int, stride: int
) -> tf.Tensor:
  if operation == "identity":
    return images if stride == 1 else layers.halve(norms, operation, images, filters)
  kind, _, size = operation.partition("_")
  if kind == "sep":
    return layers.separable(norms, operation, images, filters, int(size[0]), stride)
  return layers.pool(operation, kind, images, 3, stride)


@model(
    "enas_recurrent", batch=integer(64), cell=integer(0, minimum=0), nodes=integer(8),
    layers=integer(1), steps=integer(8), hidden=integer(1024), vocab=integer(10000))
def enas_recurrent(
    batch: int, cell: int, nodes: int, layers: int, steps: int, hidden: int, vocab: int) -> Model:
  """Builds a language model of a sampled recurrent cell, unrolled.

  Args:
    batch: sequences of a step.
    cell: the seed from which the cell is sampled; all layers have the same cell.
    nodes: of the cell.
    layers: of the network.
    steps: words of a sequence.
    hidden: width of every layer.
    vocab: number of words.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  words = recurrent.tokens("tokens", batch, steps)
  labels = recurrent.tokens("labels", batch, steps)
  shape = _sample_recurrent_cell(random.Random(cell), nodes)
  values = recurrent.embed(words, vocab, hidden)
  for layer in range(layers):
    with v1.variable_scope(f"layer_{layer}"):
      values = _recurrent_layer(shape, values, hidden)
  loss = recurrent.cross_entropy(values, labels, vocab)
  return Model(loss=loss, feeds=(words, labels), clip_norm=5.0)


def _sample_recurrent_cell(rng: random.Random, nodes: int) -> List[Tuple[int, str]]:
  """Samples an earlier node and an activation for every node; the first reads the cell's inputs."""
  return [(rng.randrange(node) if node else -1, rng.choice(list(_ACTIVATIONS)))
          for node in range(nodes)]


def _recurrent_layer(
    shape: List[Tuple[int, str]], inputs: List[tf.Tensor], hidden: int) -> List[tf.Tensor]:
  """Outputs of every step, [B, H] each; every variable is read once."""
  batch = inputs[0].shape.as_list()[0]
  weights = [
      tf.convert_to_tensor(recurrent.weight(
          f"node_{node}", [2 * hidden if node == 0 else hidden, 2 * hidden]))
      for node in range(len(shape))]
  output = tf.zeros([batch, hidden], name="output")
  read = {source for source, _ in shape}
  outputs = []
  for step, step_inputs in enumerate(inputs):
    states: List[tf.Tensor] = []
    for node, (source, activation) in enumerate(shape):
      with v1.name_scope(f"step_{step}/node_{node}"):
        value = tf.concat([step_inputs, output], axis=1) if node == 0 else states[source]
        carried = output if node == 0 else value
        gate, content = tf.split(tf.matmul(value, weights[node]), 2, axis=1)
        # A highway: the gate is the share of the node's input that passes unchanged.
        gate, content = tf.sigmoid(gate), _ACTIVATIONS[activation](content)
        states.append(carried + gate * (content - carried))
    loose = [state for node, state in enumerate(states) if node not in read]
    with v1.name_scope(f"step_{step}/mean"):
      output = loose[0] if len(loose) == 1 else tf.add_n(loose) / float(len(loose))
    outputs.append(output)
  return outputs
