"""GDP as a one-shot policy: devices of all nodes drawn from one pass of the network.

Every node is drawn with the probabilities that the network gives it, as in the paper. The paper
leaves open how draws of different nodes depend on one another. If they are independent, no two
placements of thousands of nodes differ in structure, and the cost of a placement says little about
any node. Here the nodes of a stretch of a depth-first walk share the noise of their draws, so nodes
with like probabilities go together. The stretches' length differs from placement to placement.
A stretch is one decision: the log probability of each
of its nodes is the mean over the stretch, so that PPO's ratio, and its clipping, is that of the
stretch. Where all nodes of a stretch have the same probabilities, that is their joint probability.

Dimensions: B placements side by side, M nodes, T steps, at least as many, D devices, padded.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.policies import weight_files
from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import MASK, NUM_NODES, WALK, Inputs, NodeTable
from placeto_tf.training.one_shot_policy import LOG_PROBS, Decisions

import tensorflow as tf  # isort: skip
from tf_agents.distributions import masked  # isort: skip
from tf_agents.networks import network  # isort: skip
from tf_agents.specs import distribution_spec  # isort: skip
from tf_agents.specs import tensor_spec  # isort: skip

_LONGEST_STRETCH = 0.25  # of the nodes
_VERSION = 3  # of the node inputs: weights of another version see other features or another order
GRAPH, STRETCH = "graph", "stretch"


class GdpPolicy(network.DistributionNetwork):
  """One network for a list of graphs, each on its cluster, as tf-agents sees it.

  A placement is an episode of as many steps as there are nodes: a step's observation names the
  graph and the node's stretch, its action is the node's device. No device depends on those before
  it, so all of them are drawn in one pass (`draw`).

  Attributes:
    network: that is trained.
    most_nodes: of the largest graph.
  """

  def __init__(self, graphs: Sequence[Inputs], gdp: GdpNetwork):
    """Args: graphs: the list that `graph` is an index of, see `node_inputs`."""
    self.most_nodes = max(len(each[MASK]) for each in graphs)

    def below(count, name):
      return tensor_spec.BoundedTensorSpec([], tf.int32, 0, count - 1, name=name)

    device = below(gdp.config.max_devices, "device")
    super().__init__(
        {GRAPH: below(len(graphs), GRAPH), STRETCH: below(self.most_nodes, STRETCH)},
        state_spec=(), name="GdpPolicy",
        output_spec=distribution_spec.DistributionSpec(
            Decisions, {LOG_PROBS: tensor_spec.TensorSpec([], tf.float32)}, sample_spec=device))
    self.network = gdp
    self._inputs = NodeTable(graphs)
    self._walks = tuple(each[WALK] for each in graphs)
    self._forward = tf.function(
        self._one, input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns (Decisions of observations [B, T], network_state); a row is of one graph."""
    del step_type, training
    rows = tf.shape(observation[GRAPH])[0]
    stretches = tf.reshape(observation[STRETCH], [rows, -1])
    graphs, place = tf.unique(tf.reshape(observation[GRAPH], [rows, -1])[:, 0])
    inputs = self._inputs(graphs)

    def by_row(values):  # [M, D] -> [B, T, D]
      shape = tf.stack([-1, tf.shape(stretches)[1], self.network.config.max_devices])
      ragged = tf.RaggedTensor.from_row_lengths(values, inputs[NUM_NODES])
      return tf.gather(ragged.to_tensor(shape=shape), place)

    devices = masked.MaskedCategorical(
        by_row(self.network(inputs)), by_row(inputs[MASK]) > 0)
    outer = tf.shape(observation[GRAPH])

    def log_probs(actions):
      chosen = devices.log_prob(tf.reshape(actions, tf.shape(stretches)))
      found = tf.reshape(self._pooled(chosen, stretches), outer)
      found.set_shape(observation[GRAPH].shape)
      return found

    entropies = tf.reshape(devices.entropy(), outer)
    entropies.set_shape(observation[GRAPH].shape)
    return Decisions(log_probs, entropies), network_state

  def _one(self, graph: tf.Tensor) -> tf.Tensor:
    """Returns [M, D] of a graph's nodes; about -1e10 for devices that a node may not use."""
    inputs = self._inputs(graph[None])
    return masked.MaskedCategorical(self.network(inputs), inputs[MASK] > 0).logits

  def logits(self, graph: int = 0) -> np.ndarray:
    """Returns [M, D] of a graph's nodes; about -1e10 for devices that a node may not use."""
    return self._forward(tf.constant(graph)).numpy()

  def greedy(self, graph: int = 0) -> np.ndarray:
    """Returns [M] int32: the likeliest device of each node."""
    return self.logits(graph).argmax(axis=1).astype(np.int32)

  def soften(self, spread: float, graph: int = 0) -> None:
    """Scales the network's logits down where a graph's lie further apart than `spread`.

    That is their deviation over the devices that a node may use, the mean over nodes with a choice.
    """
    allowed = self._inputs(tf.constant([graph]))[MASK].numpy() > 0
    choices = allowed.sum(axis=1) > 1
    if not choices.any():
      return
    found = np.std(self.logits(graph)[choices], axis=1, where=allowed[choices]).mean()
    if found > spread:
      self.network.scale_logits(float(spread / found))

  def draw(
      self, rng: np.random.Generator, count: int, graph: int = 0
  ) -> Tuple[np.ndarray, Dict[str, np.ndarray]]:
    """Draws placements; the module describes how nodes depend on one another.

    Returns:
      [count, M] int32 devices; and of each node its `STRETCH` and the `LOG_PROBS` of its device,
      [count, M] both.
    """
    logits, walk = self.logits(graph), self._walks[graph]
    log_probs = tf.nn.log_softmax(logits).numpy()
    stretches = np.stack([draw_stretches(rng, walk) for _ in range(count)])
    placements = np.stack([
        (logits + rng.gumbel(size=(len(walk), logits.shape[1]))[each]).argmax(axis=1)
        for each in stretches]).astype(np.int32)
    chosen = np.take_along_axis(log_probs[None], placements[..., None], axis=2)[..., 0]
    return placements, {STRETCH: stretches, LOG_PROBS: self._pooled(
        tf.constant(chosen), tf.constant(stretches)).numpy()}

  def act(self, rng: np.random.Generator) -> Callable[[np.ndarray], Tuple[np.ndarray, Any]]:
    """Returns what `driving.play` asks: the numbers of one graph [B] -> `draw`."""
    return lambda graphs: self.draw(rng, len(graphs), int(graphs[0]))

  def _pooled(self, values: tf.Tensor, stretches: tf.Tensor) -> tf.Tensor:
    """Returns [B, M] the mean over each node's stretch of values [B, M]."""
    b, m = tf.shape(values)[0], tf.shape(values)[1]
    labels = stretches + m * tf.range(b)[:, None]  # no two rows share a stretch
    means = tf.math.unsorted_segment_mean(
        tf.reshape(values, [-1]), tf.reshape(labels, [-1]), b * m)
    return tf.gather(means, labels)


def draw_stretches(rng: np.random.Generator, walk: np.ndarray) -> np.ndarray:
  """Returns [M] int32 number of each node's stretch of the walk, from 0 on along the walk.

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
      directory, {f"arr_{i}": value for i, value in enumerate(network.get_weights())},
      {"policy": "gdp", "version": _VERSION, "network": dataclasses.asdict(network.config),
       **notes})


def load_network(directory: str) -> GdpNetwork:
  """Returns the network that `save_weights` wrote, in the directory or the `weights` of a run's.

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
  network.set_weights(values)
  return network
