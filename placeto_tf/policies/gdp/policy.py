"""GDP as a one-shot policy: devices of all nodes sampled from one pass of the network.

Every node is sampled with the probabilities that the network gives it, as in the paper. The paper
does not say how samples of different nodes depend on one another. If samples are independent,
placements of thousands of nodes all look alike on a large scale, and the cost of a placement says
little about any node. Here the nodes of a stretch of a depth-first walk share the noise of their
samples, so nodes with similar probabilities go to the same device. The length of stretches varies
between placements. A stretch is one decision: each of its nodes gets the mean log probability over
the stretch, so that PPO computes and clips one ratio per stretch. If all nodes of a stretch have
the same probabilities, this mean is the log of their joint probability.

Dimensions: B placements side by side, M nodes, T steps (T >= M), D devices (padded).
"""

from __future__ import annotations

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

_LONGEST_STRETCH = 0.25  # as a fraction of the nodes
_VERSION = 3  # of the node inputs: other versions have other features, or in another order
GRAPH, STRETCH = "graph", "stretch"


class GdpPolicy(network.DistributionNetwork):
  """One network for a list of graphs, each on its cluster, as tf-agents sees it.

  A placement is an episode with one step per node: a step's observation is the numbers of the
  graph and of the node's stretch, and its action is the node's device. No device depends on earlier
  ones, so all devices are sampled in one pass (`sample`).

  Attributes:
    network: the network that is trained.
    most_nodes: number of nodes of the largest graph.
  """

  def __init__(self, graphs: Sequence[Inputs], gdp: GdpNetwork):
    """Makes the policy of a network.

    Args:
      graphs: the inputs of each graph, see `node_inputs`; `graph` is an index into this list.
      gdp: the network.
    """
    self.most_nodes = max(len(each[MASK]) for each in graphs)

    def below(count, name):
      """Returns the spec of a scalar from 0 to a count, excluded.

      Args:
        count: the number of values.
        name: of the spec.

      Returns:
        A `BoundedTensorSpec` of int32.
      """
      return tensor_spec.BoundedTensorSpec([], tf.int32, 0, count - 1, name=name)

    device = below(gdp.config.max_devices, "device")  # the action of a step
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
    """Gives the decisions of every step of a batch of episodes.

    Args:
      observation: `GRAPH` and `STRETCH`, [B, T] or [B] int32; each row has one graph.
      step_type, training: not used.
      network_state: passed on.

    Returns:
      `Decisions` of shape [B, T] or [B], and the network state.
    """
    del step_type, training
    rows = tf.shape(observation[GRAPH])[0]  # B
    stretches = tf.reshape(observation[STRETCH], [rows, -1])  # [B, T]
    # The network runs once for each graph that occurs; `place` [B] is the graph of each row.
    graphs, place = tf.unique(tf.reshape(observation[GRAPH], [rows, -1])[:, 0])
    inputs = self._inputs(graphs)

    def by_row(values):  # [M, D] -> [B, T, D]
      shape = tf.stack([-1, tf.shape(stretches)[1], self.network.config.max_devices])
      # Padding steps get logits and masks of 0; their weight in the loss is 0.
      ragged = tf.RaggedTensor.from_row_lengths(values, inputs[NUM_NODES])
      return tf.gather(ragged.to_tensor(shape=shape), place)

    devices = masked.MaskedCategorical(  # [B, T] distributions over D
        by_row(self.network(inputs)), by_row(inputs[MASK]) > 0)
    outer = tf.shape(observation[GRAPH])

    def log_probs(actions):
      # Log probabilities are pooled over stretches; entropies are not.
      chosen = devices.log_prob(tf.reshape(actions, tf.shape(stretches)))
      found = tf.reshape(self._pooled(chosen, stretches), outer)
      found.set_shape(observation[GRAPH].shape)
      return found

    entropies = tf.reshape(devices.entropy(), outer)
    entropies.set_shape(observation[GRAPH].shape)
    return Decisions(log_probs, entropies), network_state

  def _one(self, graph: tf.Tensor) -> tf.Tensor:
    """Returns the logits [M, D] of a graph; about -1e10 for devices that a node may not use."""
    inputs = self._inputs(graph[None])
    return masked.MaskedCategorical(self.network(inputs), inputs[MASK] > 0).logits

  def logits(self, graph: int = 0) -> np.ndarray:
    """Returns the logits of a graph's nodes.

    Args:
      graph: its number.

    Returns:
      [M, D] float32; about -1e10 for devices that a node may not use.
    """
    return self._forward(tf.constant(graph)).numpy()

  def greedy(self, graph: int = 0) -> np.ndarray:
    """Returns the likeliest device of each node.

    Args:
      graph: its number.

    Returns:
      [M] int32.
    """
    return self.logits(graph).argmax(axis=1).astype(np.int32)

  def soften(self, spread: float, graph: int = 0) -> None:
    """Scales the network's logits down if the spread of a graph's logits exceeds a limit.

    Args:
      spread: the limit. The spread is the standard deviation of a node's logits over the devices
        that the node may use, averaged over nodes with a choice.
      graph: its number.
    """
    allowed = self._inputs(tf.constant([graph]))[MASK].numpy() > 0  # [M, D]
    choices = allowed.sum(axis=1) > 1  # [M]
    if not choices.any():
      return
    found = np.std(self.logits(graph)[choices], axis=1, where=allowed[choices]).mean()
    # Scaling keeps the order of devices, so the likeliest placement does not change.
    if found > spread:
      self.network.scale_logits(float(spread / found))

  def sample(
      self, rng: np.random.Generator, count: int, graph: int = 0
  ) -> Tuple[np.ndarray, Dict[str, np.ndarray]]:
    """Samples placements; the module describes how nodes depend on one another.

    Args:
      rng: the source of randomness.
      count: number of placements.
      graph: number of the graph.

    Returns:
      [count, M] int32 devices; and for each node its `STRETCH` and the `LOG_PROBS` of its device,
      both [count, M].
    """
    logits, walk = self.logits(graph), self._walks[graph]  # [M, D], [M]
    log_probs = tf.nn.log_softmax(logits).numpy()
    stretches = np.stack([sample_stretches(rng, walk) for _ in range(count)])  # [count, M]
    placements = np.stack([
        # Gumbel-max: all nodes of a stretch share the row of noise at the stretch's number.
        (logits + rng.gumbel(size=(len(walk), logits.shape[1]))[each]).argmax(axis=1)
        for each in stretches]).astype(np.int32)
    # [count, M]
    chosen = np.take_along_axis(log_probs[None], placements[..., None], axis=2)[..., 0]
    return placements, {STRETCH: stretches, LOG_PROBS: self._pooled(
        tf.constant(chosen), tf.constant(stretches)).numpy()}

  def act(self, rng: np.random.Generator) -> Callable[[np.ndarray], Tuple[np.ndarray, Any]]:
    """Returns the function that `driving.play` calls for actions.

    Args:
      rng: the source of randomness.

    Returns:
      A function: the number of one graph, B times [B] -> the results of `sample`.
    """
    return lambda graphs: self.sample(rng, len(graphs), int(graphs[0]))

  def _pooled(self, values: tf.Tensor, stretches: tf.Tensor) -> tf.Tensor:
    """Returns [B, M] the mean over each node's stretch of values [B, M]."""
    b, m = tf.shape(values)[0], tf.shape(values)[1]
    labels = stretches + m * tf.range(b)[:, None]  # no two rows share a stretch
    means = tf.math.unsorted_segment_mean(  # [B M], one a stretch
        tf.reshape(values, [-1]), tf.reshape(labels, [-1]), b * m)
    return tf.gather(means, labels)


def sample_stretches(rng: np.random.Generator, walk: np.ndarray) -> np.ndarray:
  """Divides the walk of a graph into stretches of random lengths.

  The mean length is sampled first, log-uniformly from one node to a quarter of the nodes.

  Args:
    rng: the source of randomness.
    walk: [M] each node's place in the walk.

  Returns:
    [M] int32 number of each node's stretch, from 0 on along the walk.
  """
  m = len(walk)
  length = np.exp(rng.uniform(0.0, np.log(max(_LONGEST_STRETCH * m, 1.0))))
  # Each node of the walk begins a stretch with probability 1 / length, so lengths are geometric.
  ends = rng.random(m) < 1 / length
  ends[0] = False  # numbers begin with 0
  return np.cumsum(ends)[walk].astype(np.int32)


def save_weights(network: GdpNetwork, directory: str, **notes: Any) -> None:
  """Writes the weights and a JSON sidecar with the network's sizes.

  Args:
    network: its weights are written.
    directory: made where it does not exist.
    **notes: further content of the sidecar.
  """
  weight_files.write_network(
      directory, network.get_weights(), network.config, policy="gdp", version=_VERSION, **notes)


def load_network(directory: str) -> GdpNetwork:
  """Reads the network that `save_weights` wrote.

  Args:
    directory: of the weights, or of a training run with the weights in its `weights`.

  Returns:
    The network with these weights.

  Raises:
    PlacementError: the files are missing, damaged, or of another policy or version.
  """
  _, config, values = weight_files.read_network(
      directory, GdpConfig, "--policy=gdp", policy="gdp", version=_VERSION)
  # A damaged file must not make a network far larger than its weights.
  if config.width * max(config.width * (config.rounds + config.layers), config.max_devices) > sum(
      value.size for value in values):
    raise PlacementError(f"the network of {directory} is larger than its arrays; train it again")
  network = GdpNetwork(config)
  weight_files.assign(network.variables, values)
  return network
