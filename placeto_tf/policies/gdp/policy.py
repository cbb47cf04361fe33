"""GDP as a one-shot policy: devices of all nodes drawn from one pass of the network.

Every node is drawn with the probabilities that the network gives it, as in the paper. The paper
leaves open how draws of different nodes depend on one another. If they are independent, no two
placements of thousands of nodes differ in structure, and the cost of a placement says little about
any node. Here the nodes of a stretch of a depth-first walk share the noise of their draws, so nodes
with like probabilities go together. The stretches' length differs from placement to placement.
A stretch is one decision: the log probability of each
of its nodes is the mean over the stretch, so that PPO's ratio, and its clipping, is that of the
stretch. Where all nodes of a stretch have the same probabilities, that is their joint probability.

Legend: B placements side by side, M nodes, P devices, padded.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.policies import op_features, weight_files
from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import NodeInputs
from placeto_tf.training.one_shot_policy import NEVER, OneShotPolicy, Sample

import tensorflow as tf  # isort: skip

_LONGEST_STRETCH = 0.25  # of the nodes
_VERSION = 3  # of the node inputs: weights of another version see other features or another order
DEVICES, STRETCHES = "devices", "stretches"


class GdpPolicy(OneShotPolicy):
  """One network for a list of graphs, each on its cluster."""

  def __init__(self, graphs: Sequence[NodeInputs], network: GdpNetwork, joint: bool = True):
    """Args: graphs: the list that `graph` is an index of."""
    super().__init__()
    self._joint = joint
    self.network = network
    self._inputs = [
        {name: tf.constant(value) for name, value in inputs.arrays().items()} for inputs in graphs]
    self._walks = [
        op_features.walk_numbers(each.sources, each.targets, each.num_nodes) for each in graphs]
    self._forward = tf.function(
        network, input_signature=[network.signature()], autograph=False)

  def logits(self, graph: int = 0) -> tf.Tensor:
    """[M, P] of a graph's nodes."""
    return self._forward(self._inputs[graph])

  def greedy(self, graph: int = 0) -> np.ndarray:
    """[M] int32: the likeliest device of each node."""
    return self.logits(graph).numpy().argmax(axis=1).astype(np.int32)

  def soften(self, spread: float, graph: int = 0) -> None:
    """Scales the network's logits down where a graph's lie further apart than `spread`.

    That is their deviation over the devices that a node may use, the mean over nodes with a choice.
    """
    logits = self.logits(graph).numpy()
    allowed = logits > NEVER
    choices = allowed.sum(axis=1) > 1
    if not choices.any():
      return
    found = np.std(logits[choices], axis=1, where=allowed[choices]).mean()
    if found > spread:
      self.network.scale_logits(float(spread / found))

  def sample(self, rng: np.random.Generator, count: int, graph: int = 0) -> Sample:
    """Draws `count` placements; the module describes how nodes depend on one another."""
    logits = self.logits(graph).numpy()
    log_probs = tf.nn.log_softmax(logits).numpy()
    walk = self._walks[graph]
    stretches = np.stack([draw_stretches(rng, walk) for _ in range(count)])
    placements = np.stack([
        (logits + rng.gumbel(size=(len(walk), logits.shape[1]))[each]).argmax(axis=1)
        for each in stretches]).astype(np.int32)
    chosen = np.take_along_axis(log_probs[None], placements[..., None], axis=2)[..., 0]
    choices = {DEVICES: placements, STRETCHES: stretches}
    return Sample(placements, choices, self._pooled(
        tf.constant(chosen), tf.constant(stretches)).numpy())

  def log_prob(
      self, choices: Dict[str, tf.Tensor], graph: int = 0) -> Tuple[tf.Tensor, tf.Tensor]:
    """[B, M] log probabilities of devices, means over stretches, and [B, M] entropies."""
    log_probs = tf.nn.log_softmax(self.logits(graph))
    entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)
    devices = choices[DEVICES]
    chosen = tf.transpose(tf.gather(log_probs, tf.transpose(devices), batch_dims=1))
    return (self._pooled(chosen, choices[STRETCHES]),
            tf.broadcast_to(entropy, tf.shape(devices)))

  def _pooled(self, values: tf.Tensor, stretches: tf.Tensor) -> tf.Tensor:
    """[B, M] the mean over each node's stretch of values [B, M]."""
    if not self._joint:
      return values
    b, m = tf.shape(values)[0], tf.shape(values)[1]
    labels = stretches + m * tf.range(b)[:, None]  # no two rows share a stretch
    means = tf.math.unsorted_segment_mean(
        tf.reshape(values, [-1]), tf.reshape(labels, [-1]), b * m)
    return tf.gather(means, labels)


def draw_stretches(rng: np.random.Generator, walk: np.ndarray) -> np.ndarray:
  """[M] int32 number of each node's stretch of the walk, from 0 on along the walk.

  The mean length of a stretch is drawn first, log-uniformly from one node to a quarter of them.

  Args:
    rng: the source of randomness.
    walk: [M] each node's place in the walk.
  """
  m = len(walk)
  length = np.exp(rng.uniform(0.0, np.log(max(_LONGEST_STRETCH * m, 1.0))))
  ends = rng.random(m) < 1 / length
  ends[0] = False
  return np.cumsum(ends)[walk].astype(np.int32)


def save_weights(network: GdpNetwork, directory: str, **notes: Any) -> None:
  """Writes the weights and a JSON sidecar with the network's sizes and `notes`."""
  weight_files.write(
      directory, {f"arr_{i}": variable.numpy() for i, variable in enumerate(network.variables)},
      {"policy": "gdp", "version": _VERSION, "network": network.config.to_json(), **notes})


def load_network(directory: str) -> GdpNetwork:
  """The network that `save_weights` wrote, in the directory or the `weights` of a run's.

  Raises:
    PlacementError: the files are missing, damaged, or of another policy or version.
  """
  remedy = "give a directory that a training run of gdp wrote, such as ROOT_DIR/weights"
  sidecar = weight_files.read_sidecar(directory, remedy=remedy, error_type=PlacementError)
  if sidecar.get("policy") != "gdp" or sidecar.get("version") != _VERSION:
    raise PlacementError(
        f"the weights in {directory} are of policy {sidecar.get('policy')!r}, version "
        f"{sidecar.get('version')!r}; expected 'gdp', version {_VERSION}: {remedy}")
  arrays = weight_files.read_arrays(directory, remedy=remedy, error_type=PlacementError)
  try:
    values = [arrays[f"arr_{i}"] for i in range(len(arrays))]
    config = weight_files.config_of(GdpConfig, sidecar.get("network"))
    # A network far larger than its weights must not be made.
    if config.width * max(config.width * (config.rounds + config.layers), config.max_devices) > sum(
        value.size for value in values):
      raise ValueError("the network is larger than its arrays")
  except (ValueError, KeyError, PlacementError) as error:
    raise PlacementError(
        f"the weights in {directory} were not understood ({error}); {remedy}") from None
  network = GdpNetwork(config)
  expected = [tuple(variable.shape) for variable in network.variables]
  found = [value.shape for value in values]
  if found != expected:
    raise PlacementError(
        f"the weights in {directory} have shapes {found}, expected {expected}; train them again")
  for variable, value in zip(network.variables, values):
    variable.assign(value)
  return network
