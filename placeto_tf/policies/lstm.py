"""An LSTM over whole sequences in TensorFlow's fused kernel, or step by step.

Keras' LSTM unrolls a loop of small ops on a CPU, ten times slower here. Hochreiter and Schmidhuber
1997 with forget gates; the gates' order is that of the kernel: input, cell, forget, output.

Dimensions: T steps, B sequences side by side, I inputs, H hidden.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow

import tensorflow as tf  # isort: skip

State = Tuple[tf.Tensor, tf.Tensor]  # cell and hidden, [B, H] both


def initial(rng: np.random.Generator, shape: Tuple[int, ...], scale: float = 1.0) -> np.ndarray:
  """Returns uniform values of variance `scale`**2 over the mean of the two dimensions (Glorot)."""
  limit = scale * np.sqrt(6 / (shape[0] + shape[-1]))
  return rng.uniform(-limit, limit, shape).astype(np.float32)


class Lstm(tf.Module):
  """One layer; `kernel` is [I + H, 4 H], `bias` [4 H]."""

  def __init__(self, num_inputs: int, num_hidden: int, rng: np.random.Generator, name: str):
    super().__init__(name=name)
    self.num_hidden = num_hidden
    self.kernel = tf.Variable(
        initial(rng, (num_inputs + num_hidden, 4 * num_hidden)), name="kernel")
    self.bias = tf.Variable(np.zeros(4 * num_hidden, np.float32), name="bias")

  def zero_state(self, batch: int) -> State:
    """Returns the state before the first step."""
    return (tf.zeros([batch, self.num_hidden]),) * 2

  def sequence(self, inputs: tf.Tensor, state: State) -> Tuple[tf.Tensor, State]:
    """Returns all steps, [T, B, I] -> hidden [T, B, H] and the last state."""
    out = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.shape(inputs, out_type=tf.int64)[0], x=inputs, cs_prev=state[0],
        h_prev=state[1], **self._weights())
    return out.h, (out.cs[-1], out.h[-1])

  def step(self, inputs: tf.Tensor, state: State) -> State:
    """Returns one step, [B, I]; without a gradient."""
    out = tf.raw_ops.LSTMBlockCell(
        x=inputs, cs_prev=state[0], h_prev=state[1], **self._weights())
    return out.cs, out.h

  def _weights(self):
    peephole = tf.zeros([self.num_hidden])
    return dict(
        w=self.kernel, b=self.bias, wci=peephole, wcf=peephole, wco=peephole, forget_bias=1.0,
        cell_clip=-1.0, use_peephole=False)
