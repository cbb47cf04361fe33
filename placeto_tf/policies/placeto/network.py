"""Placeto's network on TensorFlow GNN: a score for each option edge of a GraphTensor.

`encoding/schema.pbtxt` describes the GraphTensor. The same weights score every option edge, so
equal devices get equal scores, and any number of groups and devices is possible. Optional rounds of
messages go along the dataflow, against it, and by device; untrained messages change no score.
`scorer.ScorerWeights` holds the same weights for inference without TensorFlow.

Dimensions: B observations, A arms, E option edges, F pair features, H width, G groups, D devices.
"""

from __future__ import annotations

from typing import Any, Dict, List

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.environments import move_environment as environment_lib
from placeto_tf.policies.placeto.scorer import CAP, SAME_DEVICE, ScorerWeights

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip
from tf_agents.networks import network  # isort: skip

_PAIR, _HIDDEN = "pair", "hidden"


class Messages(tf.keras.layers.Layer):
  """One round of messages between option edges."""

  def __init__(self, width: int):
    """Makes the weights.

    Args:
      width: H.
    """
    super().__init__()
    # [H, H] along the dataflow, [H, H] against it, [2 H, H] to option edges.
    self.along, self.against, self.reached = (
        self.add_weight(name=name, shape=shape) for name, shape in (
            ("along", (width, width)), ("against", (width, width)),
            ("reached", (2 * width, width))))

  def call(self, graph: tfgnn.GraphTensor) -> tf.Tensor:
    """Adds messages to the hidden features of option edges.

    Args:
      graph: its option edges carry `_PAIR` [E, F] and `_HIDDEN` [E, H].

    Returns:
      [E, H].
    """
    option = graph.edge_sets[schema.OPTION]
    hidden, here = option[_HIDDEN], option[_PAIR][:, SAME_DEVICE:SAME_DEVICE + 1]  # [E, H], [E, 1]

    def pooled(edges, tag, values, kind):
      """Pools the values of edges at the nodes of one of their ends.

      Args:
        edges, tag: edge set, and the end of its edges.
        values: [edges, any].
        kind: "sum" or "mean".

      Returns:
        [nodes, any].
      """
      return tfgnn.pool_edges_to_node(graph, edges, tag, kind, feature_value=values)

    def spread(edges, tag, values):
      """Gives each edge the value of the node at one of its ends.

      Args:
        edges, tag: edge set, and the end of its edges.
        values: [nodes, any].

      Returns:
        [edges, any].
      """
      return tfgnn.broadcast_node_to_edges(graph, edges, tag, feature_value=values)

    # A group's state is that of the option edge to its present device: [G, H].
    state = pooled(schema.OPTION, tfgnn.SOURCE, hidden * here, "sum")
    heard = tf.nn.relu(sum(  # [G, H], from the means over producing and over consuming groups
        pooled(schema.DATAFLOW, to, spread(schema.DATAFLOW, of, state) @ weights, "mean")
        for of, to, weights in ((tfgnn.SOURCE, tfgnn.TARGET, self.along),
                                (tfgnn.TARGET, tfgnn.SOURCE, self.against))))
    there = pooled(schema.OPTION, tfgnn.TARGET, hidden * here, "sum") / tf.maximum(  # [D, H]
        pooled(schema.OPTION, tfgnn.TARGET, here, "sum"), 1.0)
    return hidden + tf.concat([  # [E, 2 H] @ [2 H, H]
        spread(schema.OPTION, tfgnn.SOURCE, heard),
        spread(schema.OPTION, tfgnn.TARGET, there)], axis=1) @ self.reached


class PlacetoNetwork(network.Network):
  """Reward network of tf-agents: observations of `move_environment` -> scores of arms [B, A]."""

  def __init__(self, given: ScorerWeights):
    """Makes the network.

    Args:
      given: initial weights; their shapes decide the width and the rounds of messages.
    """
    super().__init__(state_spec=(), name="PlacetoNetwork")
    given = given.dense
    width = len(given.bias_1)
    self._first = tf.keras.layers.Dense(width, "relu")  # [E, F] -> [E, H]
    self._rounds = [Messages(width) for _ in range(len(given.messages) // 3)]  # [E, H] each
    self._second = tf.keras.layers.Dense(width, "relu")  # [E, H]
    self._last = tf.keras.layers.Dense(1, use_bias=False)  # [E, 1], the score before it is capped
    for layer, inputs in ((self._first, NUM_FEATURES), (self._second, width), (self._last, width)):
      layer.build((None, inputs))
    # The last layer's [H] becomes a column, [H, 1].
    for variable, value in zip(self.variables, (*given.arrays, *given.messages)):
      variable.assign(value.reshape(variable.shape))

  def create_variables(self, input_tensor_spec=None, **kwargs):
    """Does nothing: all variables exist, and observations may have any number of arms."""

  @property
  def variables(self) -> List[tf.Variable]:
    """Returns all variables, which are trained, in the order of the arrays of `ScorerWeights`."""
    return [*self._first.weights, *self._second.weights, *self._last.weights,
            *(each for layer in self._rounds
              for each in (layer.along, layer.against, layer.reached))]

  trainable_variables = variables

  @property
  def scorer(self) -> ScorerWeights:
    """Returns the present weights, for inference without TensorFlow."""
    hidden_1, bias_1, hidden_2, bias_2, output, *messages = (
        each.numpy() for each in self.variables)
    return ScorerWeights(hidden_1, bias_1, hidden_2, bias_2, output[:, 0], tuple(messages))

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
    scores = tf.reshape(self.score(_graph_of(observation)), tf.shape(stops)) + preference
    # Moves are gathered if their score is above a limit, and above half of the best score.
    best = tf.reduce_max(tf.where(stops, preference.dtype.min, scores), axis=1, keepdims=True)
    return tf.where(stops, tf.maximum(preference, 0.5 * best), scores), network_state

  def score(self, graph: tfgnn.GraphTensor) -> tf.Tensor:
    """Scores the option edges of a GraphTensor.

    Args:
      graph: its option edges carry `_PAIR` [E, F].

    Returns:
      [E] float32, between -10 and 10.
    """
    hidden = self._first(graph.edge_sets[schema.OPTION][_PAIR])  # [E, H]
    for layer in self._rounds:
      features = {_PAIR: graph.edge_sets[schema.OPTION][_PAIR], _HIDDEN: hidden}
      hidden = layer(graph.replace_features(edge_sets={schema.OPTION: features}))
    last = self._last(self._second(hidden))[:, 0]  # [E]
    return last / (1 + tf.abs(last) / CAP)

  def serve(self, serialized: tf.Tensor) -> Dict[str, tf.Tensor]:
    """Scores the option edges of a serialized GraphTensor of `encoding/schema.pbtxt`, of any graph.

    Args:
      serialized: scalar string, a `tf.train.Example`.

    Returns:
      `score` [E] of the option edges, with their ends `group` [E] and `device` [E].
    """
    graph = tfgnn.parse_single_example(schema.graph_tensor_spec(), serialized)
    ends = graph.edge_sets[schema.OPTION].adjacency  # group and device of each option edge
    return {"score": self.score(graph), "group": ends.source, "device": ends.target}


def _graph_of(observation: Dict[str, Any]) -> tfgnn.GraphTensor:
  """Returns one GraphTensor of B components, whose option edges are the arms, in the same order.

  A component has A groups, one more group for padding edges, and A devices.
  """
  arms = observation[environment_lib.ARM]
  b, a = tf.unstack(tf.shape(arms[environment_lib.GROUP]))
  nodes = a + 1  # nodes of a component
  first = tf.range(b)[:, None] * nodes  # of each component

  def flat(ends):
    """Returns [B n] node numbers in the whole GraphTensor, from [B, n] within components."""
    return tf.reshape(ends + first, [-1])

  flow, ends = observation.get(environment_lib.GLOBAL), arms  # [B, K, 2]; name -> [B, A]
  if flow is None:  # without messages, training takes single arms, and their ends do not matter
    flow = tf.zeros([b, 0, 2], tf.int32)
    ends = {name: tf.zeros([b, a], tf.int32) for name in arms}
  return tfgnn.GraphTensor.from_pieces(
      node_sets={name: tfgnn.NodeSet.from_fields(sizes=tf.fill([b], nodes), features={})
                 for name in (schema.GROUP, schema.DEVICE)},
      edge_sets={
          schema.OPTION: tfgnn.EdgeSet.from_fields(
              sizes=tf.fill([b], a), features={
                  _PAIR: tf.reshape(arms[environment_lib.PAIR], [b * a, -1])},
              adjacency=tfgnn.Adjacency.from_indices(
                  (schema.GROUP, flat(tf.maximum(ends[environment_lib.GROUP], 0))),
                  (schema.DEVICE, flat(ends[environment_lib.DEVICE])))),
          schema.DATAFLOW: tfgnn.EdgeSet.from_fields(
              sizes=tf.fill([b], tf.shape(flow)[1]), features={},
              adjacency=tfgnn.Adjacency.from_indices(
                  (schema.GROUP, flat(flow[..., 0])), (schema.GROUP, flat(flow[..., 1]))))})
