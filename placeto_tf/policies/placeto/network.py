"""Placeto's policy network for grouped graphs: observation -> a device for each current group.

Placeto section 3.2 and appendix. Each group's raw features are embedded by message passing along
the dataflow and against it, joined, pooled over ancestors, descendants and parallel groups, and a
two-layer head gives the logits of the devices. As in the paper, the input holds each group's
device one-hot, as in its authors' code, and the head has an output per device, each of which has to
be learned.

`NetworkConfig.tied` gives equal devices the same score by construction, and weights that fit any
number of devices: the network runs once for each candidate device, side by side, and gives one
score. Features of each group say whether it is on the candidate, on the current group's device, or
on a host, and how long transfers between it and the current group would take. Compute time and
transfers are given a second time for groups on the candidate only. Sums over groups are then the
work of the candidate, in all and at about the same time, and the transfers that moving there would
save. Devices of different kinds differ in the time and memory that groups take there, in their
links, and in whether they are hosts.

One network serves several graphs, padded to one size; observations name the graph they are of. The
same weights read serialized GraphTensors of `encoding/schema.pbtxt`: see `PlacetoNetwork.serve`.

Legend: P graphs, S placements of each, G groups, D devices, C candidate devices (1 unless tied),
K groups placed now, F raw features, W width of one direction's embedding.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Sequence

import numpy as np

from placeto_tf.encoding import derived, schema
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacementError
from placeto_tf.policies.layers import Seeds, dense
from placeto_tf.policies.placeto import embedding as embedding_lib
from placeto_tf.training import observation as observation_lib

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip
from tf_agents.distributions import masked  # isort: skip
from tf_agents.networks import network  # isort: skip
from tf_agents.specs import distribution_spec  # isort: skip
from tf_agents.specs import tensor_spec  # isort: skip
from tf_agents.utils import nest_utils  # isort: skip

EMBEDDINGS = ("placeto", "simple_partitioner", "simple_aggregator")
_COMPUTE, _HOST = 0, 3  # columns of derived.ON_DEVICE
# How far apart, as a share of the step, two groups may start and still compete for a device.
_WINDOWS = (0.03, 0.15)


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
  """Attributes, with the paper's value where the default departs from it.

  embedding: "placeto", or one of the paper's ablations (section 4.4): "simple_partitioner" pools
    over the three partitions without message passing, "simple_aggregator" sums over all groups.
  rounds: of message passing, 8 in the paper.
  transform_layers: of the transform of a group's own features; 3 in the authors' code.
  head_scale: of the first weights of the last layer, over Glorot's; 1 in the authors' code. With
    less, the untrained policy draws all devices about alike.
  width: W; None, as in the paper, is the number of raw features.
  tied: whether devices are scored one by one by the same weights; False in the paper.
  weigh_edges: whether messages are weighed by bytes; False in the paper.
  squash: whether embeddings pass a tanh after every round; False in the paper.
  mean_pooling: whether pooled sums are divided by the number of groups; False in the paper. With
    it, the other groups' part of the head's input starts out small.
  skip: whether poolings see raw features besides the embedding; False in the paper.
  initial_keep: probability with which the untrained policy leaves a group where it is; None, as in
    the paper, adds no such term.
  least_exploration: share of a uniform policy over allowed devices that is always mixed in, so that
    a policy cannot end up leaving everything where it is; 0 in the paper.
  """

  embedding: str = "placeto"
  rounds: int = 8
  transform_layers: int = 2
  head_scale: float = 0.01
  width: Optional[int] = None
  tied: bool = True
  weigh_edges: bool = True
  squash: bool = True
  mean_pooling: bool = True
  skip: bool = True
  initial_keep: Optional[float] = 0.8
  least_exploration: float = 0.05

  def __post_init__(self) -> None:
    if self.embedding not in EMBEDDINGS:
      raise PlacementError(
          f"embedding is {self.embedding!r}; expected one of {', '.join(EMBEDDINGS)}")


class PlacetoNetwork(network.DistributionNetwork):
  """Observation (see `training.observation`) -> MaskedCategorical over devices, [..., K].

  The observations of one batch row are all of the graph that its first one names: [B] observations
  may be of B graphs, [B, T] are T placements of each of B graphs.
  """

  def __init__(
      self, input_tensor_spec, action_spec, graphs: Sequence[GroupedGraph], *,
      max_groups: Optional[int] = None, config: Optional[NetworkConfig] = None, seed: int = 0,
      name: str = "PlacetoNetwork"):
    """Makes the network.

    Args:
      input_tensor_spec, action_spec: see `training.observation`.
      graphs: that it places; observations name one (`observation.GRAPH`).
      max_groups: G, where it is more than the largest graph has.
      config: see `NetworkConfig`.
      seed: of the weights.
      name: of the network.

    Raises:
      PlacetoError: a graph has more groups, or is on a cluster of another size.
    """
    config = config or NetworkConfig()
    table = derived.GraphTable(graphs, max_groups=max_groups)
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
    seeds = Seeds(seed)
    of_devices = table.num_devices
    if config.tied:
      of_devices = 9 + derived.NUM_ON_DEVICE + len(_WINDOWS)
    self._num_raw = derived.NUM_STATIC + 3 + of_devices
    width = config.width or self._num_raw
    self._passes, poolings = [], embedding_lib.SumOfAll
    if config.embedding == "placeto":
      self._passes = [
          embedding_lib.MessagePassing(
              width, config.rounds, seeds, forward=forward, weigh_edges=config.weigh_edges,
              squash=config.squash, transform_layers=config.transform_layers, padded=table.padded)
          for forward in (True, False)]
    if config.embedding != "simple_aggregator":
      poolings = embedding_lib.Poolings
    self._poolings = poolings(2 * width, seeds, mean=config.mean_pooling)
    self._head = tf.keras.Sequential([
        dense(16 * width, seeds, "relu"),
        dense(8 * width, seeds, "relu"),
        dense(
            1 if config.tied else table.num_devices, seeds, scale=config.head_scale ** 2)])
    self._keep = None
    if config.initial_keep is not None:
      odds = config.initial_keep / (1 - config.initial_keep) * (max(2.0, table.choices) - 1)
      self._keep = tf.Variable(np.log(odds), dtype=tf.float32, name="keep")

  def hold_keep(self, kept: float) -> None:
    """Adjusts the bias for the present device so that the share `kept` nears `initial_keep`."""
    target = self._config.initial_keep
    if self._keep is None or target is None:
      return
    found = min(max(kept, 0.01), 0.99)
    self._keep.assign_add(np.log(target / (1 - target)) - np.log(found / (1 - found)))

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns (MaskedCategorical with batch shape outer dims + [K], network_state)."""
    del step_type, training
    outer_rank = nest_utils.get_outer_rank(observation, self._outer_rank_spec)
    current = observation[observation_lib.CURRENT]
    outer, static_outer = tf.shape(current)[:outer_rank], current.shape[:outer_rank]
    rows = outer[0] if outer_rank else 1  # P
    stack = {name: tf.reshape(value, tf.stack([rows, -1, value.shape[-1]]))  # [P, S, ...]
             for name, value in observation.items()}
    arrays = self._table(stack[observation_lib.GRAPH][:, 0, 0])
    k, d = current.shape[-1], self._table.num_devices

    def restored(value):
      value = tf.reshape(value, tf.concat([outer, [k, d]], axis=0))
      value.set_shape(static_outer + [k, d])
      return value

    logits, allowed = map(restored, self._decide(stack, arrays, self._table.candidates))
    return self.output_spec.build_distribution(logits=logits, mask=allowed), network_state

  def serve(self, serialized: tf.Tensor) -> Dict[str, tf.Tensor]:
    """Decides on a serialized GraphTensor of `encoding/schema.pbtxt`, of any graph.

    A tied network takes clusters of any size; another one those of as many devices as its own.

    Args:
      serialized: scalar string, a `tf.train.Example`.

    Returns:
      `logits` [K, D] of the devices for the groups marked as current, in their order, about
      -1e10 where a group may not be placed; and `group` [K] int64, which these are.
    """
    graph = tfgnn.parse_single_example(schema.graph_tensor_spec(), serialized)
    groups = graph.node_sets[schema.GROUP]
    placed = graph.edge_sets[schema.PLACEMENT].adjacency
    current = tf.where(groups["current"][:, 0] > 0)[:, 0]
    arrays = {name: value[None] for name, value in derived.derive(graph).items()}
    step_us = tf.maximum(graph.context["step_time_us"][0, 0], 1e-9)
    observed = {
        observation_lib.PLACEMENT: tf.scatter_nd(
            placed.source[:, None], placed.target, tf.reshape(groups.total_size, [1])),
        observation_lib.CURRENT: tf.cast(current, tf.int32),
        observation_lib.VISITED: groups["visited"][:, 0],
        observation_lib.START: tf.clip_by_value(groups["start_us"][:, 0] / step_us, 0.0, 1.0)}
    logits, allowed = self._decide(
        {name: value[None, None] for name, value in observed.items()}, arrays,
        tf.range(tf.shape(arrays[derived.ALLOWED])[2]))
    found = masked.MaskedCategorical(logits=logits[0, 0], mask=allowed[0, 0])
    return {"logits": found.logits, "group": current}

  def _decide(self, stack, arrays: derived.Derived, candidates):
    """Logits and mask [P, S, K, D]; `stack` holds observations [P, S, ...]."""
    current, placement = (
        stack[name] for name in (observation_lib.CURRENT, observation_lib.PLACEMENT))
    raw = self._raw_features(stack, arrays, candidates)
    joined = raw
    if self._passes:
      graph = embedding_lib.group_graph(arrays, raw)
      joined = tf.concat([passing(graph) for passing in self._passes], axis=-1)
      joined = tf.reshape(joined, tf.concat([tf.shape(raw)[:4], joined.shape[-1:]], axis=0))
      if self._config.skip:
        joined = tf.concat([joined, raw], axis=-1)
    scores = self._head(self._poolings(joined, current, arrays))  # [P, S, K, C, 1 or D]
    d = tf.shape(arrays[derived.ALLOWED])[2]
    if self._config.tied:  # a device that is no candidate has logit 0 and is masked if not allowed
      logits = tf.einsum("pskcx,cd->pskd", scores, tf.one_hot(candidates, d))
    else:
      logits = scores[:, :, :, 0]
    if self._keep is not None:
      logits += self._keep * tf.one_hot(tf.gather(placement, current, batch_dims=2), d)
    allowed = tf.gather(arrays[derived.ALLOWED], current, batch_dims=1) > 0
    return self._explore(logits, allowed), allowed

  def _explore(self, logits: tf.Tensor, allowed: tf.Tensor) -> tf.Tensor:
    """Logits of the mixture with the uniform policy over allowed devices."""
    share = self._config.least_exploration
    if not share:
      return logits
    own = masked.MaskedCategorical(logits=logits, mask=allowed)
    number = tf.reduce_sum(tf.cast(allowed, tf.float32), axis=-1, keepdims=True)
    return tf.math.log((1 - share) * own.probs_parameter() + share / number)

  def _raw_features(self, stack, arrays: derived.Derived, candidates) -> tf.Tensor:
    """[P, G, S, C, F]: static features, where groups are, current and visited flags, start."""
    by_group = {
        name: tf.transpose(stack[name], [0, 2, 1])  # [P, G, S]
        for name in (observation_lib.PLACEMENT, observation_lib.VISITED, observation_lib.START)}
    placement = by_group[observation_lib.PLACEMENT]
    shape = tf.shape(placement)
    c = tf.size(candidates) if self._config.tied else 1
    current = stack[observation_lib.CURRENT]  # [P, S, K]
    is_current = tf.reduce_max(tf.one_hot(current, shape[1], axis=1), axis=3)  # [P, G, S]
    # Start times are in the authors' code, not in the paper.
    at = tf.gather(stack[observation_lib.START], current[:, :, 0], batch_dims=2)  # [P, S]
    start = by_group[observation_lib.START] - at[:, None]
    columns = [is_current, by_group[observation_lib.VISITED], start]

    def spread(values):  # [P, G, S or 1, C or 1, f] over placements and candidates
      return tf.broadcast_to(values, tf.concat([shape, [c, values.shape[-1]]], axis=0))

    parts = [spread(arrays[derived.STATIC][:, :, None, None]),
             spread(tf.stack(columns, axis=-1)[:, :, :, None])]
    on_device = arrays[derived.ON_DEVICE]  # [P, G, D, 4]
    on = tf.one_hot(placement, tf.shape(on_device)[2])  # [P, G, S, D]
    if not self._config.tied:
      parts.append(on[:, :, :, None])
    else:
      mine = tf.gather(stack[observation_lib.PLACEMENT], current[:, :, 0], batch_dims=2)  # [P, S]
      at_present = tf.stack([
          tf.reduce_sum(on * on_device[:, :, None, :, _COMPUTE], axis=-1),
          tf.reduce_sum(on * on_device[:, :, None, :, _HOST], axis=-1),
          tf.cast(placement == mine[:, None], tf.float32),
          *self._traffic(arrays, current)], axis=-1)[:, :, :, None]  # [P, G, S, 1, 5]
      on_candidate = tf.gather(on, candidates, axis=3)[..., None]  # [P, G, S, C, 1]
      there = on_candidate * (1.0 - is_current)[:, :, :, None, None]
      compute = at_present[..., :1]
      parts += [spread(at_present), on_candidate, there * compute, there * at_present[..., 3:]]
      apart = tf.abs(start)[:, :, :, None, None]
      parts += [there * compute * tf.maximum(0.0, 1.0 - apart / window) for window in _WINDOWS]
      parts.append(spread(tf.gather(on_device, candidates, axis=2)[:, :, None]))
    raw = tf.concat(parts, axis=-1)
    raw.set_shape([None, None, None, None, self._num_raw])
    return raw

  def _traffic(self, arrays: derived.Derived, current: tf.Tensor):
    """Twice [P, G, S]: transfers from each group to the current one [P, S, K], and back."""
    traffic, first = arrays[derived.TRAFFIC], current[:, :, 0]
    back = tf.gather(traffic, first, axis=1, batch_dims=1)  # [P, S, G]
    to = tf.gather(tf.transpose(traffic, [0, 2, 1]), first, axis=1, batch_dims=1)
    return tf.transpose(to, [0, 2, 1]), tf.transpose(back, [0, 2, 1])
