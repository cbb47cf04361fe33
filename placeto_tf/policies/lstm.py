"""An LSTM over whole sequences in TensorFlow's fused kernel, or step by step.

Keras' LSTM runs a loop of small ops on a CPU, which takes ten times as long here. Hochreiter and
Schmidhuber 1997, with forget gates. Gates are in the kernel's order: input, cell, forget, output.

Dimensions: T steps, B sequences side by side, I inputs, H hidden.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow

import tensorflow as tf  # isort: skip

State = Tuple[tf.Tensor, tf.Tensor]  # cell and hidden, [B, H] both


def initial(rng: np.random.Generator, shape: Tuple[int, ...], scale: float = 1.0) -> np.ndarray:
  """Samples Glorot's uniform values, of variance `scale`**2 over the mean of the two dimensions.

  Args:
    rng: the source of randomness.
    shape: of the result; its first and last dimensions are the matrix product's inputs and outputs.
    scale: factor on the standard deviation.

  Returns:
    float32 of the shape.
  """
  # A uniform number within +-limit has variance limit^2 / 3.
  limit = scale * np.sqrt(6 / (shape[0] + shape[-1]))
  return rng.uniform(-limit, limit, shape).astype(np.float32)


class Lstm(tf.Module):
  """One LSTM layer with I inputs and H hidden units; `kernel` is [I + H, 4 H], `bias` [4 H]."""

  def __init__(self, num_inputs: int, num_hidden: int, rng: np.random.Generator, name: str):
    super().__init__(name=name)
    self.num_hidden = num_hidden
    # [I + H, 4 H]: input and hidden state, concatenated -> the four gates.
    self.kernel = tf.Variable(
        initial(rng, (num_inputs + num_hidden, 4 * num_hidden)), name="kernel")
    self.bias = tf.Variable(np.zeros(4 * num_hidden, np.float32), name="bias")  # [4 H]

  def zero_state(self, batch: int) -> State:
    """Returns the state before the first step.

    Args:
      batch: B.
    """
    return (tf.zeros([batch, self.num_hidden]),) * 2

  def sequence(self, inputs: tf.Tensor, state: State) -> Tuple[tf.Tensor, State]:
    """Takes all steps of sequences.

    Args:
      inputs: [T, B, I].
      state: before the first step.

    Returns:
      Hidden states [T, B, H] and the state after the last step.
    """
    out = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.shape(inputs, out_type=tf.int64)[0], x=inputs, cs_prev=state[0],
        h_prev=state[1], **self._weights())
    return out.h, (out.cs[-1], out.h[-1])  # the last of T

  def step(self, inputs: tf.Tensor, state: State) -> State:
    """Takes one step, without a gradient.

    Args:
      inputs: [B, I].
      state: before the step.

    Returns:
      The state after the step.
    """
    out = tf.raw_ops.LSTMBlockCell(
        x=inputs, cs_prev=state[0], h_prev=state[1], **self._weights())
    return out.cs, out.h

  def _weights(self):
    """Returns the arguments of both kernels; peepholes are off, so their weights are zeros."""
    peephole = tf.zeros([self.num_hidden])  # [H]
    return dict(
        # The kernel adds 1 to the forget gate's bias, so that an untrained cell keeps its memory.
        # Cells are not clipped.
        w=self.kernel, b=self.bias, wci=peephole, wcf=peephole, wco=peephole, forget_bias=1.0,
        cell_clip=-1.0, use_peephole=False)
