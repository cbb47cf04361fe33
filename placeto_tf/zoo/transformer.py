"""Layers of plain TensorFlow ops that the Transformer models share.

Dimensions: B batch, T positions, H hidden size.
"""

from __future__ import annotations

from typing import Callable, Optional, Sequence

import tensorflow as tf

v1 = tf.compat.v1

_STDDEV = 0.02  # of initial weights (Devlin et al. 2018)


def weight(name: str, shape: Sequence[int]) -> tf.Variable:
  """Makes a trainable resource variable in the current variable scope, normally distributed.

  Returns:
    The float32 variable.
  """
  return v1.get_variable(
      name, shape, tf.float32, v1.truncated_normal_initializer(stddev=_STDDEV), use_resource=True)


def constant_weight(name: str, shape: Sequence[int], value: float) -> tf.Variable:
  """Makes a trainable resource variable in the current variable scope, all of one value.

  Returns:
    The float32 variable.
  """
  return v1.get_variable(
      name, shape, tf.float32, v1.constant_initializer(value), use_resource=True)


def dense(
    name: str, inputs: tf.Tensor, width: int,
    activation: Optional[Callable[[tf.Tensor], tf.Tensor]] = None, bias: bool = True) -> tf.Tensor:
  """Multiplies the last dimension with a matrix.

  Args:
    name: variable scope.
    inputs: [..., inputs].
    width: of the result's last dimension.
    activation: applied to the result; None for none.
    bias: whether a bias is added.

  Returns:
    [..., width].
  """
  with v1.variable_scope(name):
    shape = inputs.shape.as_list()
    flat = tf.reshape(inputs, [-1, shape[-1]])
    flat = tf.matmul(flat, weight("kernel", [shape[-1], width]))
    if bias:
      flat = tf.nn.bias_add(flat, constant_weight("bias", [width], 0.0))
    if activation is not None:
      flat = activation(flat)
    return tf.reshape(flat, shape[:-1] + [width])


def layer_norm(name: str, inputs: tf.Tensor) -> tf.Tensor:
  """Normalises the last dimension (Ba et al. 2016, arXiv:1607.06450).

  Args:
    name: variable scope.
    inputs: [..., H].

  Returns:
    [..., H].
  """
  with v1.variable_scope(name):
    width = [inputs.shape.as_list()[-1]]
    mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(
        inputs, mean, variance, constant_weight("offset", width, 0.0),
        constant_weight("scale", width, 1.0), 1e-12)


def dropout(inputs: tf.Tensor, rate: float) -> tf.Tensor:
  """Drops a share of the inputs.

  Args:
    inputs: a tensor of any shape.
    rate: the share; with 0 no op is added.

  Returns:
    A tensor of the shape of the inputs.
  """
  return tf.nn.dropout(inputs, rate=rate) if rate else inputs


def gelu(inputs: tf.Tensor) -> tf.Tensor:
  """Applies the Gaussian error linear unit, by its tanh approximation (arXiv:1606.08415)."""
  return 0.5 * inputs * (1.0 + tf.tanh(0.7978845608 * (inputs + 0.044715 * inputs**3)))


def split_heads(inputs: tf.Tensor, heads: int) -> tf.Tensor:
  """Splits the last dimension into heads.

  Args:
    inputs: [B, T, H].
    heads: number of heads.

  Returns:
    [B, heads, T, H / heads].
  """
  batch, steps, width = inputs.shape.as_list()
  return tf.transpose(tf.reshape(inputs, [batch, steps, heads, width // heads]), [0, 2, 1, 3])


def merge_heads(inputs: tf.Tensor) -> tf.Tensor:
  """Concatenates heads: [B, heads, T, H / heads] -> [B, T, H]."""
  batch, heads, steps, width = inputs.shape.as_list()
  return tf.reshape(tf.transpose(inputs, [0, 2, 1, 3]), [batch, steps, heads * width])


def mean_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Computes the mean cross entropy.

  Args:
    logits: [..., V].
    labels: [...] int32.
  """
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=tf.reshape(labels, [-1]), logits=tf.reshape(logits, [-1, logits.shape.as_list()[-1]])))
