"""Placeto's network: a perceptron that gives each option edge of a GraphTensor a score.

`encoding/schema.pbtxt` describes the GraphTensor. A score depends on the features of its own option
edge alone, which the simulation of the whole placement supplies. The same weights score every
option edge, so equal devices get equal scores, and any number of groups and devices is possible.
Rounds of messages between groups gained nothing (docs/results/what_did_not_help.md).
`scorer.ScorerWeights` holds the same weights for inference without TensorFlow.

Dimensions: B observations, A arms, E option edges, F pair features, H width.
"""

from __future__ import annotations

from typing import Dict, List

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.environments import move_environment as environment_lib
from placeto_tf.policies.placeto.scorer import CAP, ScorerWeights

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip
from tf_agents.networks import network  # isort: skip


class PlacetoNetwork(network.Network):
  """Reward network of tf-agents: observations of `move_environment` -> scores of arms [B, A]."""

  def __init__(self, given: ScorerWeights):
    """Makes the network.

    Args:
      given: initial weights; their shapes decide the width.
    """
    super().__init__(state_spec=(), name="PlacetoNetwork")
    given = given.dense
    width = len(given.bias_1)
    self._first = tf.keras.layers.Dense(width, "relu")  # [E, F] -> [E, H]
    self._second = tf.keras.layers.Dense(width, "relu")  # [E, H]
    self._last = tf.keras.layers.Dense(1, use_bias=False)  # [E, 1], the score before it is capped
    for layer, inputs in ((self._first, NUM_FEATURES), (self._second, width), (self._last, width)):
      layer.build((None, inputs))
    # The last layer's [H] becomes a column, [H, 1].
    for variable, value in zip(self.variables, given.arrays):
      variable.assign(value.reshape(variable.shape))

  def create_variables(self, input_tensor_spec=None, **kwargs):
    """Does nothing: all variables exist, and observations may have any number of arms."""

  @property
  def variables(self) -> List[tf.Variable]:
    """Returns all variables, which are trained, in the order of the arrays of `ScorerWeights`."""
    return [*self._first.weights, *self._second.weights, *self._last.weights]

  trainable_variables = variables

  @property
  def scorer(self) -> ScorerWeights:
    """Returns the present weights, for inference without TensorFlow."""
    arrays = [each.numpy() for each in self.variables]
    return ScorerWeights(*arrays[:-1], *arrays[-1].T)  # the last is a column

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Scores the arms of observations.

    Args:
      observation: of the environment, [B, ...], with the preferences that are added.
      step_type, training: not used.
      network_state: passed on.

    Returns:
      (scores [B, A], network_state).
    """
    del step_type, training
    arms = observation[environment_lib.ARM]
    preference, stops = arms[environment_lib.PREFERENCE], (
        arms[environment_lib.GROUP] == environment_lib.STOP)  # [B, A] both
    scores = self.score(arms[environment_lib.PAIR]) + preference
    # Moves are gathered if their score is above a limit, and above half of the best score.
    best = tf.reduce_max(tf.where(stops, preference.dtype.min, scores), axis=1, keepdims=True)
    return tf.where(stops, tf.maximum(preference, 0.5 * best), scores), network_state

  def score(self, pairs: tf.Tensor) -> tf.Tensor:
    """Returns [...] float32 scores, between -10 and 10, of option edges with features [..., F]."""
    last = self._last(self._second(self._first(pairs)))[..., 0]
    return last / (1 + tf.abs(last) / CAP)

  def serve(self, serialized: tf.Tensor) -> Dict[str, tf.Tensor]:
    """Scores the option edges of a serialized GraphTensor of `encoding/schema.pbtxt`, of any graph.

    Returns:
      `score` [E] of the option edges, with their ends `group` [E] and `device` [E].
    """
    graph = tfgnn.parse_single_example(schema.graph_tensor_spec(), serialized)
    options = graph.edge_sets[schema.OPTION]
    ends = options.adjacency  # group and device of each option edge
    return {"score": self.score(options[environment_lib.PAIR]), "group": ends.source,
            "device": ends.target}
