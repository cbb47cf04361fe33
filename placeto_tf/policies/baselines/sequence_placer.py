"""The placer network for a sequence of groups: an LSTM encoder and an attentional LSTM decoder.

Mirhoseini et al. 2017, section 3.2, and, with an encoder in both directions, 2018, section 3. The
encoder reads the groups' embeddings in order. The decoder takes one step per group: its input is
the device of the previous group, it attends to all encoder states, and its output is the device of
the group.

The decoder's state after a step is the query of attention (Luong et al. 2015, "general" score). So
if the devices are known, attention takes three large products, and only the LSTM goes step by step:

  score[b, i, j] = h[b, i] W_s e[b, j];  context[b, i] = sum_j softmax_j(score)[b, i, j] e[b, j]
  logits[b, i] = W_d tanh(W_c [context; h] + W_x x[b, i])

where x is the embedding of the group at the step: see `PlacerConfig.own_scale`.

`Lstm` takes whole sequences in TensorFlow's fused kernel, or single steps: Keras' LSTM runs a loop
of small ops on a CPU, which takes ten times as long here. Hochreiter and Schmidhuber 1997, with
forget gates. Gates are in the kernel's order: input, cell, forget, output.

Dimensions: B placements side by side, G groups, F features of a group, D devices, H hidden, E width
of a device's embedding; for an LSTM T steps and I inputs. Time comes first within the LSTMs, [G, B,
...], and last everywhere else.
"""

from __future__ import annotations

import dataclasses
from typing import Tuple

import numpy as np

from placeto_tf.errors import PlacementError, check_above_zero
from placeto_tf.policies.baselines.one_shot import log_prob_of

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
    """Returns the state before the first step."""
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


@dataclasses.dataclass(frozen=True)
class PlacerConfig:
  """Attributes, with the papers' values.

  hidden: H of encoder and decoder; 256 in the paper of 2018.
  bidirectional: whether the encoder reads both ways, H / 2 each; only in the paper of 2018.
  device_width: E.
  own_scale: scale of the initial W_x, which the papers do not have. Without W_x, all information
    on a group passes two LSTMs whose initial outputs hardly differ between groups: an update moves
    all groups together, and after 6,000 placements nothing was learned.
  """

  hidden: int = 128
  bidirectional: bool = False
  device_width: int = 16
  own_scale: float = 3.0

  def __post_init__(self) -> None:
    check_above_zero(self, "hidden", "device_width")
    if self.bidirectional and self.hidden % 2:
      raise PlacementError(f"hidden is {self.hidden}; expected an even number for two directions")


class SequencePlacer(tf.Module):
  """Embeddings [B or 1, G, F] -> devices [B, G]; `allowed` masks devices, [B or 1, G, D] bool.

  Attributes:
    config: sizes of the network.
    num_devices: D.
  """

  def __init__(
      self, num_features: int, num_devices: int, config: PlacerConfig, rng: np.random.Generator):
    """Makes the variables."""
    super().__init__(name="placer")
    self.config, self.num_devices = config, num_devices
    h = config.hidden
    # [..., F] -> [..., H], ReLU: the encoder's inputs.
    self._project = tf.Variable(initial(rng, (num_features, h)), name="project")
    self._project_bias = tf.Variable(np.zeros(h, np.float32), name="project_bias")
    # Encoder: [G, B, H] -> [G, B, H]; with two directions, H / 2 of each.
    widths = [h // 2, h // 2] if config.bidirectional else [h]
    self._encoders = [Lstm(h, width, rng, f"encoder{i}") for i, width in enumerate(widths)]
    # The last row is the input of the first step.
    self._embeddings = tf.Variable(  # [D + 1, E]
        initial(rng, (num_devices + 1, config.device_width)), name="device_embeddings")
    self._decoder = Lstm(config.device_width, h, rng, "decoder")  # [G, B, E] -> [G, B, H]
    self._score = tf.Variable(initial(rng, (h, h)), name="attention_score")  # W_s [H, H]
    self._combine = tf.Variable(initial(rng, (2 * h, h)), name="attention_combine")  # W_c [2 H, H]
    # W_x [F, H]
    self._own = tf.Variable(initial(rng, (num_features, h), config.own_scale), name="own")
    # Small, so that the first placements are sampled (nearly) uniformly.
    self._logits = tf.Variable(initial(rng, (h, num_devices), 0.1), name="logits")  # W_d [H, D]

  def encode(self, features: tf.Tensor) -> tf.Tensor:
    """Encodes sequences of groups.

    Args:
      features: [B, G, F].

    Returns:
      [B, G, H] encoder states.
    """
    inputs = tf.nn.relu(tf.tensordot(features, self._project, 1) + self._project_bias)  # [B, G, H]
    inputs = tf.transpose(inputs, [1, 0, 2])  # [G, B, H]
    states = []
    for encoder, backward in zip(self._encoders, (False, True)):
      state = encoder.zero_state(tf.shape(inputs)[1])
      # The backward encoder reads the sequence from its end, so its states are reversed again.
      hidden, _ = encoder.sequence(inputs[::-1] if backward else inputs, state)
      states.append(hidden[::-1] if backward else hidden)
    return tf.transpose(tf.concat(states, axis=-1), [1, 0, 2])

  def attention(self, encoded: tf.Tensor, hidden: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Lets decoder states attend to all encoder states.

    Args:
      encoded: [B, G, H] encoder states, or [1, G, H] if they are the same for all B.
      hidden: [B, S, H] decoder states.

    Returns:
      Contexts [B, S, H] and weights [B, S, G].
    """
    queries = tf.tensordot(hidden, self._score, 1)  # [B, S, H]
    if encoded.shape[0] == 1:  # one product instead of B
      weights = tf.nn.softmax(tf.tensordot(queries, encoded[0], [[2], [1]]))  # [B, S, G]
      return tf.tensordot(weights, encoded[0], 1), weights
    weights = tf.nn.softmax(tf.matmul(queries, encoded, transpose_b=True))
    return tf.matmul(weights, encoded), weights

  def own(self, features: tf.Tensor) -> tf.Tensor:
    """Returns W_x x, the direct path from a group's embedding to its logits.

    Args:
      features: [B or 1, G, F].

    Returns:
      [B or 1, G, H].
    """
    return tf.tensordot(features, self._own, 1)

  def logits(self, encoded: tf.Tensor, hidden: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Computes the logits of S steps, before devices are masked.

    Args:
      encoded: [B or 1, G, H] encoder states.
      hidden: [B, S, H] decoder states.
      own: [B or 1, S, H] of the groups at these steps.

    Returns:
      [B, S, D].
    """
    context, _ = self.attention(encoded, hidden)  # [B, S, H]
    # tanh(W_c [context; h] + W_x x): [B, S, H].
    hidden = tf.tanh(
        tf.tensordot(tf.concat([context, hidden], axis=-1), self._combine, 1) + own)
    return tf.tensordot(hidden, self._logits, 1)

  def log_prob(
      self, features: tf.Tensor, allowed: tf.Tensor, devices: tf.Tensor) -> tf.Tensor:
    """Returns the log probability of each device, given the devices of earlier groups.

    Args:
      features: [B or 1, G, F].
      allowed: [B or 1, G, D] bool.
      devices: [B, G] int32.

    Returns:
      [B, G] float32.
    """
    encoded = self.encode(features)
    b = tf.shape(devices)[0]
    # Teacher forcing: the input of a step is the device of the step before, D at the first.
    before = tf.concat([tf.fill([b, 1], self.num_devices), devices[:, :-1]], axis=1)
    # A product, not a gather: the gradient of a gather has a row for each lookup, and would be
    # clipped before the rows of one device are summed.
    inputs = tf.tensordot(tf.one_hot(before, self.num_devices + 1), self._embeddings, 1)
    hidden, _ = self._decoder.sequence(  # [G, B, H]
        tf.transpose(inputs, [1, 0, 2]), self._decoder.zero_state(b))
    logits = self.logits(encoded, tf.transpose(hidden, [1, 0, 2]), self.own(features))
    return log_prob_of(logits, tf.broadcast_to(allowed, tf.shape(logits)), devices)

  def sample(self, features: tf.Tensor, allowed: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Samples devices one after the other.

    Args:
      features: [B or 1, G, F].
      allowed: [B or 1, G, D] bool.
      noise: [B, G, D] Gumbel; the largest sum of logit and noise wins.

    Returns:
      [B, G] int32 devices.
    """
    encoded, own = self.encode(features), self.own(features)  # [B or 1, G, H] both
    by_step = tf.transpose(noise, [1, 0, 2])  # [G, B, D]
    g, b = tf.shape(by_step)[0], tf.shape(by_step)[1]

    def step(i, state, before, devices):
      """Places one group of each sequence.

      Args:
        i: the step.
        state: of the decoder, after step i - 1.
        before: [B] devices of step i - 1; D at the first step.
        devices: array of the devices so far.
      """
      # [B, H] cell and hidden.
      state = self._decoder.step(tf.gather(self._embeddings, before), state)
      logits = self.logits(encoded, state[1][:, None], own[:, i:i + 1])[:, 0]  # [B, D], S = 1
      possible = tf.broadcast_to(allowed[:, i], tf.shape(logits))
      scores = tf.where(possible, logits + by_step[i], -np.inf)
      # Gumbel-max: a sample of the softmax over allowed devices, [B].
      device = tf.argmax(scores, axis=-1, output_type=tf.int32)
      return i + 1, state, device, devices.write(i, device)

    # Group after group: each device is the next step's input.
    out = tf.while_loop(
        lambda i, *_: i < g, step,
        (0, self._decoder.zero_state(b), tf.fill([b], self.num_devices),
         tf.TensorArray(tf.int32, g)))
    return tf.transpose(out[3].stack())  # [G, B] -> [B, G]
