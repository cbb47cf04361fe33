"""The published policy network for grouped graphs: observation -> a device for the current group.

Placeto section 3.2 and appendix. Each group's raw features are embedded by message passing along
the dataflow and against it, concatenated, and pooled over ancestors, descendants and parallel
groups; a head gives the logits of the devices. As in the paper, the input has each group's device
as one-hot, and the head has an output per device, each with its own weights.

One network serves several graphs, padded to one size; an observation has the number of its graph.

Dimensions: P graphs, S placements of each graph, G groups, D devices, K current groups (one, as in
the paper), F raw features, W width of one direction's embedding.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from placeto_tf.encoding import derived
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments.visit_environment import CURRENT, GRAPH, PLACEMENT, START, VISITED
from placeto_tf.errors import check_one_of
from placeto_tf.policies.layers import Seeds, dense
from placeto_tf.policies.placeto.published import embedding as embedding_lib

import tensorflow as tf  # isort: skip
from tf_agents.distributions import masked  # isort: skip
from tf_agents.environments import py_environment  # isort: skip
from tf_agents.networks import network  # isort: skip
from tf_agents.specs import distribution_spec  # isort: skip
from tf_agents.specs import tensor_spec  # isort: skip
from tf_agents.utils import nest_utils  # isort: skip


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
  """Settings of the network; the defaults are the paper's.

  Attributes:
    embedding: "placeto", or one of the paper's ablations (section 4.4): "simple_partitioner" pools
      over the three partitions without message passing, "simple_aggregator" sums over all groups.
    rounds: number of rounds of message passing.
    transform_layers: number of layers of the transform of a group's own features; 3 in the authors'
      code.
    width: W; None is the number of raw features.
  """

  embedding: str = "placeto"
  rounds: int = 8
  transform_layers: int = 2
  width: Optional[int] = None

  def __post_init__(self) -> None:
    check_one_of(("placeto", "simple_partitioner", "simple_aggregator"), self, "embedding")


class PublishedNetwork(network.DistributionNetwork):
  """Observation (see `environments.visit_environment`) -> MaskedCategorical over devices, [..., K].

  All observations of a batch row have the graph of its first one: [B] observations may be of B
  graphs; [B, T] observations are T placements of each of B graphs.
  """

  def __init__(
      self, input_tensor_spec, action_spec, graphs: Sequence[GroupedGraph], *,
      config: Optional[NetworkConfig] = None, seed: int = 0, name: str = "PublishedNetwork"):
    """Makes the network, with weights sampled by a seed.

    Args:
      input_tensor_spec, action_spec: see `environments.visit_environment`.
      graphs: the graphs that it places; an observation has the index of one (`observation.GRAPH`).
      config: see `NetworkConfig`.
      seed: of the weights.
      name: of the network.

    Raises:
      PlacetoError: a graph is on a cluster of another size.
    """
    config = config or NetworkConfig()
    table = derived.GraphTable(graphs)
    shape = action_spec.shape.concatenate([table.num_devices])
    super().__init__(
        input_tensor_spec, state_spec=(),
        output_spec=distribution_spec.DistributionSpec(
            masked.MaskedCategorical, {
                "logits": tensor_spec.TensorSpec(shape, tf.float32, name="logits"),
                "mask": tensor_spec.TensorSpec(shape, tf.bool, name="mask")},
            sample_spec=action_spec, dtype=action_spec.dtype),
        name=name)
    self._config, self._table = config, table
    self._outer_rank_spec = tensor_spec.from_spec(input_tensor_spec)
    # Layers take their seeds in the order in which they are made.
    seeds = Seeds(seed)
    # F: static, current, visited, start, device one-hot.
    self._num_raw = derived.NUM_STATIC + 3 + table.num_devices
    width = config.width or self._num_raw
    self._passes, poolings = [], embedding_lib.SumOfAll
    if config.embedding == "placeto":
      self._passes = [
          embedding_lib.MessagePassing(  # [P G, S, F] -> [P G, S, W] in each direction
              width, config.rounds, seeds, forward=forward,
              transform_layers=config.transform_layers)
          for forward in (True, False)]
    if config.embedding != "simple_aggregator":
      poolings = embedding_lib.Poolings
    self._poolings = poolings(2 * width, seeds)  # -> [P, S, K, 8 W], the sum of all 2 W
    self._head = tf.keras.Sequential([
        dense(16 * width, seeds, "relu"),  # [P, S, K, 16 W]
        dense(8 * width, seeds, "relu"),  # [P, S, K, 8 W]
        dense(table.num_devices, seeds)])  # [P, S, K, D], the logits

  @classmethod
  def made(
      cls, environment: py_environment.PyEnvironment, graphs: Sequence[GroupedGraph],
      config: NetworkConfig, seed: int) -> PublishedNetwork:
    """Makes a network and its variables."""
    network = cls(
        tensor_spec.from_spec(environment.observation_spec()),
        tensor_spec.from_spec(environment.action_spec()), graphs, config=config, seed=seed)
    network.create_variables()
    return network

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Decides on the current groups of observations.

    Args:
      observation: see `environments.visit_environment`, [...] outer dims.
      step_type, training: not used.
      network_state: passed on.

    Returns:
      (MaskedCategorical with batch shape outer dims + [K], network_state).
    """
    del step_type, training
    outer_rank = nest_utils.get_outer_rank(observation, self._outer_rank_spec)
    current = observation[CURRENT]
    outer, static_outer = tf.shape(current)[:outer_rank], current.shape[:outer_rank]
    rows = outer[0] if outer_rank else 1  # P
    stack = {name: tf.reshape(value, tf.stack([rows, -1, value.shape[-1]]))  # [P, S, ...]
             for name, value in observation.items()}
    # The first observation of a row has the graph of the whole row: [P, ...] each.
    arrays = self._table(stack[GRAPH][:, 0, 0])
    k, d = current.shape[-1], self._table.num_devices

    def restored(value):
      """Returns outer dims + [K, D] from [P, S, K, D]."""
      value = tf.reshape(value, tf.concat([outer, [k, d]], axis=0))
      value.set_shape(static_outer + [k, d])
      return value

    logits, allowed = map(restored, self._decide(stack, arrays))
    return self.output_spec.build_distribution(logits=logits, mask=allowed), network_state

  def _decide(self, stack, arrays: derived.Derived):
    """Returns logits and mask [P, S, K, D]; `stack` holds observations [P, S, ...]."""
    current = stack[CURRENT]
    raw = self._raw_features(stack, arrays)  # [P, G, S, F]
    embedded = raw  # [P, G, S, any]; the simple ablations pool raw features
    if self._passes:
      graph = embedding_lib.group_graph(arrays, raw)
      # Both directions side by side: [P G, S, 2 W] -> [P, G, S, 2 W].
      embedded = tf.concat([passing(graph) for passing in self._passes], axis=-1)
      embedded = tf.reshape(embedded, tf.concat([tf.shape(raw)[:3], embedded.shape[-1:]], axis=0))
    logits = self._head(self._poolings(embedded, current, arrays))  # [P, S, K, D]
    return logits, tf.gather(arrays[derived.ALLOWED], current, batch_dims=1) > 0

  def _raw_features(self, stack, arrays: derived.Derived) -> tf.Tensor:
    """Returns [P, G, S, F]: static features, current and visited flags, start, device one-hot."""
    by_group = {
        name: tf.transpose(stack[name], [0, 2, 1])  # [P, G, S]
        for name in (PLACEMENT, VISITED, START)}
    placement = by_group[PLACEMENT]  # [P, G, S]
    shape = tf.shape(placement)
    current = stack[CURRENT]  # [P, S, K]
    is_current = tf.reduce_max(tf.one_hot(current, shape[1], axis=1), axis=3)  # [P, G, S]
    # Start times, less the current group's [P, S], are in the authors' code, not in the paper.
    start = by_group[START] - tf.gather(stack[START], current[:, :, 0], batch_dims=2)[:, None]
    static = arrays[derived.STATIC][:, :, None]  # [P, G, 1, 3]
    raw = tf.concat([
        tf.broadcast_to(static, tf.concat([shape, static.shape[-1:]], axis=0)),
        tf.stack([is_current, by_group[VISITED], start], axis=-1),
        tf.one_hot(placement, tf.shape(arrays[derived.ALLOWED])[2])], axis=-1)
    raw.set_shape([None, None, None, self._num_raw])
    return raw
