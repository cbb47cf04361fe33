"""The interface of policies that place a whole graph in one action (rnn, hierarchical, gdp).

Step-by-step policies are tf-agents networks that name the device of a group or two. A one-shot
policy names thousands of devices at once, each of which may depend on those before it, and may draw
more than devices (the hierarchical one draws groups as well). So the interface is on sequences of
decisions:

  sample(rng, count, graph)        draws `count` placements of a graph    -> `Sample`
  log_prob(choices, graph)         log probability and entropy            -> [B, A], [B, A] tensors
  gradients(choices, loss, graph)  by default of `log_prob` in one piece; a policy that goes
                                   through a big graph in segments takes the loss segment by segment

`graph` is the index of a graph the policy was made for; most have one, 0. Legend: B placements
side by side, A decisions per placement (a device for each group and, if these are drawn, a group
for each op), G groups, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Tuple

import numpy as np
import tensorflow as tf

# loss(log_probs [B, a], entropy [B, a], columns) -> scalar, for the decisions `columns`, a slice of
# all A; the loss of all is the sum over the pieces.
Loss = Callable[[tf.Tensor, tf.Tensor, slice], tf.Tensor]

NEVER = -1e9  # a logit: finite, so that entropies stay numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
  """Placements a policy has drawn.

  Attributes:
    placements: [B, G] int32 device of each of the environment's groups.
    choices: the decisions, arrays with B rows, as the policy's `log_prob` takes them. If the
      devices of those groups are all that it decides, this is `placements`.
    log_probs: [B, A] float32 log probability of each decision, given those before it; 0 where
      there was nothing to decide.
  """

  placements: np.ndarray  # [B, G]
  choices: Any
  log_probs: np.ndarray  # [B, A]


class OneShotPolicy(tf.Module):
  """Base class; `trainable_variables` are found as in any `tf.Module`."""

  def sample(self, rng: np.random.Generator, count: int, graph: int = 0) -> Sample:
    """Draws `count` placements.

    All randomness comes from `rng`; TensorFlow's global seed has no effect and is not changed.
    Devices a group may not use are never drawn.
    """
    raise NotImplementedError

  def log_prob(self, choices: Any, graph: int = 0) -> Tuple[tf.Tensor, tf.Tensor]:
    """Log probability and entropy of each decision, [B, A] both, given those before it.

    Called within a `tf.function`; `choices` are tensors of what `sample` gave.
    """
    raise NotImplementedError

  def gradients(
      self, choices: Any, loss: Loss, graph: int = 0) -> Tuple[tf.Tensor, List[tf.Tensor]]:
    """The loss of all decisions and its gradient by each of `trainable_variables`.

    Called within a `tf.function`. Variables that the loss does not depend on have a gradient of
    None.
    """
    with tf.GradientTape() as tape:
      log_probs, entropy = self.log_prob(choices, graph)
      value = loss(log_probs, entropy, slice(None))
    return value, tape.gradient(value, self.trainable_variables)


def categorical(logits: tf.Tensor, actions: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
  """Log probability of each action and entropy, [...] both, under logits [..., D].

  Logits of what is not allowed are `NEVER`; both are exactly 0 where only one is allowed.
  """
  log_probs = tf.nn.log_softmax(logits)
  entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)
  return tf.gather(log_probs, actions, batch_dims=len(logits.shape) - 1), entropy
