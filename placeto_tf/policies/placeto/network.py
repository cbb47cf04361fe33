"""Placeto's policy network for grouped graphs: observation -> a device for each current group.

Placeto section 3.2 and appendix. Each group's raw features are embedded by message passing along
the dataflow and against it, joined, pooled over ancestors, descendants and parallel groups, and a
two-layer head gives the logits of the devices. Three terms are added to the paper's logits, each
with its switch in `NetworkConfig`: a learned liking for the device the group is on, a score by
features of (group, device), and minus infinity where a group may not be placed.

One network serves several graphs, padded to one size, if they come to it one at a time: the
observations of a batch are all of the graph that the first of them names. Its weights fit any
graph on as many devices.

Legend: G groups, D devices, B placements side by side, K groups placed now, F raw features,
W width of one direction's embedding.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments import observation as observation_lib
from placeto_tf.errors import PlacementError
from placeto_tf.policies.placeto import embedding as embedding_lib
from placeto_tf.policies.placeto import graph_tables
from placeto_tf.policies.placeto.device_features import device_features

import tensorflow as tf  # isort: skip
import tensorflow_probability as tfp  # isort: skip
from tf_agents.specs import distribution_spec  # isort: skip
from tf_agents.networks import network  # isort: skip
from tf_agents.specs import tensor_spec  # isort: skip
from tf_agents.utils import nest_utils  # isort: skip

EMBEDDINGS = ("placeto", "simple_partitioner", "simple_aggregator")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
  """Attributes, with the paper's value where the default departs from it.

  embedding: "placeto", or one of the paper's ablations (section 4.4): "simple_partitioner" pools
    over the three partitions without message passing, "simple_aggregator" sums over all groups.
  rounds: of message passing, 8 in the paper.
  width: W; None, as in the paper, is the number of raw features.
  weigh_edges: whether messages are weighed by bytes; False in the paper.
  squash: whether embeddings pass a tanh after every round; False in the paper, but sums over 8
    rounds of a graph whose groups have many neighbours grow a thousandfold without.
  mean_pooling: whether pooled sums are divided by the number of groups; False in the paper. With
    it, what the other groups do starts out small in the head's eyes, and a family takes more than
    twice as long to be learned.
  start_times: whether groups' simulated times are features; the paper's code has the start.
  initial_keep: probability with which the untrained policy leaves a group where it is; None, as in
    the paper, adds no such term.
  least_exploration: share of a uniform policy over allowed devices that is always mixed in, so that
    a policy cannot come to leave everything where it is; 0 in the paper.
  device_scores: whether (group, device) pairs are scored as well; False in the paper.
  score_width: hidden width of that score.
  """

  embedding: str = "placeto"
  rounds: int = 8
  width: Optional[int] = None
  weigh_edges: bool = True
  squash: bool = True
  mean_pooling: bool = True
  start_times: bool = True
  initial_keep: Optional[float] = 0.8
  least_exploration: float = 0.05
  device_scores: bool = True
  score_width: int = 32

  def __post_init__(self) -> None:
    if self.embedding not in EMBEDDINGS:
      raise PlacementError(
          f"embedding is {self.embedding!r}; expected one of {', '.join(EMBEDDINGS)}")


class PlacetoNetwork(network.DistributionNetwork):
  """Observation (see `environments.observation`) -> Categorical over devices, [B, K]."""

  def __init__(
      self, input_tensor_spec, action_spec, graphs: Sequence[GroupedGraph], *,
      scales_us: Sequence[float], max_groups: Optional[int] = None,
      config: Optional[NetworkConfig] = None, seed: int = 0, name: str = "PlacetoNetwork"):
    """Makes the network.

    Args:
      input_tensor_spec, action_spec: see `environments.observation`.
      graphs: what it is for; of several, observations name one (`observation.GRAPH`).
      scales_us: step time of each graph's start, by which its times are divided.
      max_groups: G, where it is more than the largest graph has.
      config: see `NetworkConfig`.
      seed: of the weights.
      name: of the network.

    Raises:
      PlacetoError: a graph has more groups, or is on a cluster of another size.
    """
    config = config or NetworkConfig()
    tables = graph_tables.GraphTables(
        graphs, scales_us, max_groups=max_groups, mean_pooling=config.mean_pooling,
        device_scores=config.device_scores)
    logits_spec = tensor_spec.TensorSpec(
        action_spec.shape.concatenate([tables.num_devices]), tf.float32, name="logits")
    super().__init__(
        input_tensor_spec, state_spec=(),
        output_spec=distribution_spec.DistributionSpec(
            tfp.distributions.Categorical, {"logits": logits_spec}, sample_spec=action_spec,
            dtype=action_spec.dtype),
        name=name)
    self._config, self._tables, self._num_devices = config, tables, tables.num_devices
    self._outer_rank_spec = tensor_spec.from_spec(input_tensor_spec)
    seeds = embedding_lib.Seeds(seed)
    num_features = (
        graph_tables.NUM_STATIC + tables.num_devices + 2 + 3 * config.start_times)
    width = config.width or num_features
    self._passes, poolings = [], embedding_lib.SumOfAll
    if config.embedding == "placeto":
      self._passes = [
          embedding_lib.MessagePassing(
              width, config.rounds, seeds, forward=forward, weigh_edges=config.weigh_edges,
              squash=config.squash, padded=tables.padded)
          for forward in (True, False)]
    if config.embedding != "simple_aggregator":
      poolings = embedding_lib.Poolings
    self._poolings = poolings(2 * width, seeds)
    self._head = tf.keras.Sequential([
        embedding_lib.dense(16 * width, seeds, "relu"),
        embedding_lib.dense(8 * width, seeds, "relu"),
        embedding_lib.dense(tables.num_devices, seeds, scale=0.01)])
    self._keep = None
    if config.initial_keep is not None:
      odds = config.initial_keep / (1 - config.initial_keep) * (max(2.0, tables.choices) - 1)
      self._keep = tf.Variable(np.log(odds), dtype=tf.float32, name="keep")
    if config.device_scores:
      self._context = embedding_lib.dense(config.score_width, seeds)
      self._score_in = embedding_lib.dense(config.score_width, seeds)
      self._score_hidden = embedding_lib.dense(config.score_width, seeds, "relu")
      self._score = embedding_lib.dense(1, seeds, scale=0.01)

  def hold_keep(self, kept: float) -> None:
    """Moves the liking for the present device towards keeping `initial_keep`, from `kept`."""
    target = self._config.initial_keep
    if self._keep is None or target is None:
      return
    found = min(max(kept, 0.01), 0.99)
    self._keep.assign_add(
        0.5 * (np.log(target / (1 - target)) - np.log(found / (1 - found))))

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns (Categorical with batch shape outer dims + [K], network_state)."""
    del step_type, training
    outer_rank = nest_utils.get_outer_rank(observation, self._outer_rank_spec)
    outer = tf.shape(observation[observation_lib.CURRENT])[:outer_rank]
    static_outer = observation[observation_lib.CURRENT].shape[:outer_rank]
    flat = {
        name: tf.reshape(value, [-1, value.shape[-1]]) for name, value in observation.items()}
    logits = self._logits(flat)
    k, d = logits.shape[1:]
    logits = tf.reshape(logits, tf.concat([outer, [k, d]], axis=0))
    logits.set_shape(static_outer + [k, d])
    return self.output_spec.build_distribution(logits=logits), network_state

  def _logits(self, flat) -> tf.Tensor:
    """[B, K, D]."""
    placement, current = flat[observation_lib.PLACEMENT], flat[observation_lib.CURRENT]
    named = flat.get(observation_lib.GRAPH)
    of_graph = self._tables(None if named is None else named[0, 0])
    joined = self._raw_features(flat, of_graph)
    if self._passes:
      graph = embedding_lib.group_graph(of_graph, joined)
      joined = tf.concat([passing(graph) for passing in self._passes], axis=-1)  # [G, B, 2 W]
    pooled = self._poolings(tf.transpose(joined, [1, 0, 2]), current, of_graph)  # [B, K, 8 W]
    logits = self._head(pooled)
    here = tf.gather(placement, current, batch_dims=1)  # [B, K]
    mine = tf.one_hot(here, self._num_devices)  # [B, K, D]
    if self._keep is not None:
      logits += self._keep * mine
    if self._config.device_scores:
      features = device_features(
          of_graph, placement, flat[observation_lib.START], flat[observation_lib.FINISH], current)
      now = tf.reduce_sum(features * mine[..., None], axis=2, keepdims=True)
      features = tf.concat([features, features - now, mine[..., None]], axis=-1)
      hidden = tf.nn.relu(self._score_in(features) + self._context(pooled)[:, :, None])
      logits += self._score(self._score_hidden(hidden))[..., 0]
    disallowed = tf.gather(of_graph[graph_tables.DISALLOWED], current)
    return self._explore(logits + disallowed, disallowed)

  def _explore(self, logits: tf.Tensor, disallowed: tf.Tensor) -> tf.Tensor:
    """Logits of the mixture with the uniform policy over allowed devices."""
    share = self._config.least_exploration
    if not share:
      return logits
    mixed = tf.stack([
        tf.nn.log_softmax(logits) + np.log1p(-share),
        tf.nn.log_softmax(disallowed) + np.log(share)])
    return tf.maximum(tf.reduce_logsumexp(mixed, axis=0), graph_tables.NEVER)

  def _raw_features(self, flat, of_graph: graph_tables.Tables) -> tf.Tensor:
    """[G, B, F]: static, device one-hot, current and visited flags, times."""
    placement = tf.transpose(flat[observation_lib.PLACEMENT])  # [G, B]
    g = placement.shape[0]
    b = tf.shape(placement)[1]
    is_current = tf.transpose(tf.reduce_max(
        tf.one_hot(flat[observation_lib.CURRENT], g), axis=1))
    columns = [is_current, tf.transpose(flat[observation_lib.VISITED])]
    if self._config.start_times:
      start, finish = flat[observation_lib.START], flat[observation_lib.FINISH]
      at = tf.gather(start, flat[observation_lib.CURRENT][:, :1], batch_dims=1)
      columns += [tf.transpose(start), tf.transpose(finish), tf.transpose(start - at)]
    return tf.concat([
        tf.tile(of_graph[graph_tables.STATIC][:, None], [1, b, 1]),
        tf.one_hot(placement, self._num_devices),
        tf.stack(columns, axis=-1)], axis=-1)
