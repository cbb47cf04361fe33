"""GDP as a one-shot policy, its updates by PPO, and its methods.

Every node is sampled with the probabilities that the network gives it, as in the paper. The paper
does not say how samples of different nodes depend on one another. If samples are independent,
placements of thousands of nodes all look alike on a large scale, and the cost of a placement says
little about any node. Here the nodes of a stretch of a depth-first walk share the noise of their
samples, so nodes with similar probabilities go to the same device. The length of stretches varies
between placements. A stretch is one decision: each of its nodes gets the mean log probability over
the stretch, so that PPO computes and clips one ratio per stretch. If all nodes of a stretch have
the same probabilities, this mean is the log of their joint probability.

Updates are those of tf-agents' `PPOClipAgent`, with a step of an episode for each node. Since each
node is a step, each has a probability ratio of its own, which is clipped separately (Schulman et
al. 2017, equation 7); a joint ratio of thousands of nodes would always be clipped. The advantage of
all steps of a placement is its reward, normalized by the mean and the deviation of its batch; there
is no value network. Episodes of smaller graphs are padded with steps of weight 0, and the weights
of the steps of each graph have the same sum.

Dimensions: B placements side by side (of each graph), N ops, M nodes, T steps: nodes of the largest
graph, D devices (padded).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.policies import weight_files
from placeto_tf.policies.baselines import gdp_inputs, one_shot
from placeto_tf.policies.baselines.gdp_network import GdpConfig, GdpNetwork
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.updates import WithEntropyCoefficient, between

import tensorflow as tf  # isort: skip
from tf_agents.agents.ppo import ppo_clip_agent  # isort: skip
from tf_agents.distributions import masked  # isort: skip
from tf_agents.networks import network  # isort: skip
from tf_agents.specs import distribution_spec, tensor_spec  # isort: skip
from tf_agents.trajectories import time_step as ts  # isort: skip
from tf_agents.trajectories import trajectory  # isort: skip
from tf_agents.utils import common  # isort: skip

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

  def __init__(self, graphs: Sequence[gdp_inputs.Inputs], gdp: GdpNetwork):
    """Makes the policy of a network.

    Args:
      graphs: the inputs of each graph, see `node_inputs`; `graph` is an index into this list.
      gdp: the network.
    """
    self.most_nodes = max(len(each[gdp_inputs.MASK]) for each in graphs)
    # Scalars from 0 on: the observation of a step, and its action, the device.
    graph, stretch, device = (
        tensor_spec.BoundedTensorSpec([], tf.int32, 0, count - 1, name=name) for name, count in (
            (GRAPH, len(graphs)), (STRETCH, self.most_nodes), ("device", gdp.config.max_devices)))
    super().__init__(
        {GRAPH: graph, STRETCH: stretch}, state_spec=(), name="GdpPolicy",
        output_spec=distribution_spec.DistributionSpec(
            one_shot.Decisions, {one_shot.LOG_PROBS: tensor_spec.TensorSpec([], tf.float32)},
            sample_spec=device))
    self.network = gdp
    self._inputs = gdp_inputs.NodeTable(graphs)
    self._walks = tuple(each[gdp_inputs.WALK] for each in graphs)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
    def forward(graph):
      inputs = self._inputs(graph[None])
      return masked.MaskedCategorical(self.network(inputs), inputs[gdp_inputs.MASK] > 0).logits

    self._forward = forward

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
      ragged = tf.RaggedTensor.from_row_lengths(values, inputs[gdp_inputs.NUM_NODES])
      return tf.gather(ragged.to_tensor(shape=shape), place)

    devices = masked.MaskedCategorical(  # [B, T] distributions over D
        by_row(self.network(inputs)), by_row(inputs[gdp_inputs.MASK]) > 0)
    outer = tf.shape(observation[GRAPH])

    def log_probs(actions):
      # Log probabilities are pooled over stretches; entropies are not.
      chosen = devices.log_prob(tf.reshape(actions, tf.shape(stretches)))
      found = tf.reshape(self._pooled(chosen, stretches), outer)
      found.set_shape(observation[GRAPH].shape)
      return found

    entropies = tf.reshape(devices.entropy(), outer)
    entropies.set_shape(observation[GRAPH].shape)
    return one_shot.Decisions(log_probs, entropies), network_state

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

    Returns:
      [M] int32.
    """
    return self.logits(graph).argmax(axis=1).astype(np.int32)

  def soften(self, spread: float) -> None:
    """Scales the network's logits down if the spread of the first graph's logits exceeds a limit.

    Args:
      spread: the limit. The spread is the standard deviation of a node's logits over the devices
        that the node may use, averaged over nodes with a choice.
    """
    allowed = self._inputs(tf.constant([0]))[gdp_inputs.MASK].numpy() > 0  # [M, D]
    choices = allowed.sum(axis=1) > 1  # [M]
    if not choices.any():
      return
    found = np.std(self.logits()[choices], axis=1, where=allowed[choices]).mean()
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
    return placements, {STRETCH: stretches, one_shot.LOG_PROBS: self._pooled(
        tf.constant(chosen), tf.constant(stretches)).numpy()}

  def play(
      self, problem: PlacementProblem, rng: np.random.Generator, count: int, graph: int = 0
  ) -> one_shot.Played:
    """Samples placements of a graph, and simulates them.

    Args:
      problem: in the nodes of the graph.
      rng, count, graph: see `sample`.

    Returns:
      The placements, as episodes of one step.
    """
    placements, info = self.sample(rng, count, graph)
    return one_shot.play(problem, placements, placements, info, graph)

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


@dataclasses.dataclass(frozen=True)
class PpoConfig(one_shot.OneShotConfig):
  """The updates of GDP; the paper states the reward and the algorithm, not all sizes and rates.

  Attributes:
    epochs: gradient steps on one batch.
    clip: of the ratio of probabilities.
    entropy, final_entropy: weight of a node's mean entropy at the start and the end of training.
  """

  final_learning_rate: float = 3e-4
  epochs: int = 4
  clip: float = 0.2
  entropy: float = 0.01
  final_entropy: float = 0.0

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_least(1, self, "epochs")


class NoValues(network.Network):
  """A value network that always returns 0, because `PPOClipAgent` requires a value network."""

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns values of zero.

    Args:
      observation: of `GdpPolicy`.
      step_type, training: not used.
      network_state: passed on.

    Returns:
      (zeros of the observation's shape, network_state).
    """
    del step_type, training
    return tf.zeros_like(observation[GRAPH], tf.float32), network_state


class GdpAgent(WithEntropyCoefficient, ppo_clip_agent.PPOClipAgent):
  """PPO with an entropy bonus that falls during training."""


class GdpLearner(one_shot.OneShotLearner):
  """A policy of many graphs, and its updates by PPO."""

  config: PpoConfig

  def __init__(
      self, policy: GdpPolicy, config: PpoConfig, seed: int = 0, *,
      num_steps: Optional[int] = None):
    """Makes the agent.

    Args:
      policy, config, seed: see the base class.
      num_steps: T, for policies that have larger graphs from which they do not learn.
    """
    super().__init__(policy, config, seed)
    self._num_steps = num_steps or policy.most_nodes
    specs = ts.time_step_spec(policy.input_tensor_spec)
    self._agent = GdpAgent(
        specs, policy.output_spec.sample_spec, optimizer=self.optimizer, actor_net=policy,
        # No value loss, no normalization, one epoch per call; advantages come with the steps.
        value_net=NoValues(specs.observation, (), "NoValues"),
        importance_ratio_clipping=config.clip, value_pred_loss_coef=0.0, num_epochs=1,
        normalize_rewards=False, normalize_observations=False,
        compute_value_and_advantage_in_train=False, aggregate_losses_across_replicas=False,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))
    self._train = common.function(self._agent.train)

  def learn(self, parts: Sequence[trajectory.Trajectory], spent: float) -> Dict[str, float]:
    """Makes an update from placements of some graphs; see the base class.

    Args:
      parts: the placements of each graph.
      spent: share of the training so far, for the learning rate and the entropy bonus.
    """
    config = self.config
    self.optimizer.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    self._agent.entropy_coefficient.assign(between(config.entropy, config.final_entropy, spent))
    # Episodes of all graphs side by side: [sum of B, T].
    made = [self._steps_of(part) for part in parts]
    steps, weights = tf.nest.map_structure(
        lambda *values: tf.constant(np.concatenate(values)), *made)
    # Each epoch is a full batch; a loss that is not finite ends the epochs, and `attempt` undoes
    # the update.
    for _ in range(config.epochs):
      loss = float(self._train(steps, weights=weights).loss)
      if not np.isfinite(loss):
        break
    return {"loss": loss}

  def _steps_of(
      self, played: trajectory.Trajectory) -> Tuple[trajectory.Trajectory, np.ndarray]:
    """Returns placements as episodes [B, T] of one step per node, and weights of steps [B, T]."""
    b, t = len(played.reward), self._num_steps
    m = played.action.shape[-1]  # nodes of this graph

    def by_step(values):  # [B, 1, M] -> [B, T]
      return np.pad(values[:, 0], [(0, 0), (0, t - m)])

    rewards = played.reward
    advantages = (rewards - rewards.mean()) / max(float(rewards.std()), 1e-8)  # [B, 1]
    ones = np.ones((b, t), np.float32)
    stretches = by_step(played.policy_info[STRETCH])
    # Padding steps get stretches of their own.
    stretches[:, m:] = np.arange(m, t)  # nodes have numbers below m
    # Only the last step ends the episode.
    middle = np.full((b, t), ts.StepType.MID, np.int32)
    ends = middle.copy()
    ends[:, -1] = ts.StepType.LAST
    steps = trajectory.Trajectory(
        step_type=middle, next_step_type=ends, discount=ones, reward=rewards * ones,
        observation={GRAPH: np.repeat(played.observation, t, axis=1), STRETCH: stretches},
        action=by_step(played.action),
        policy_info={
            "dist_params": {one_shot.LOG_PROBS: by_step(played.policy_info[one_shot.LOG_PROBS])},
            "value_prediction": 0 * ones, "return": rewards * ones, "advantage": advantages * ones})
    # The weights of a graph's m steps sum to T, as in the largest graph.
    return steps, (np.where(np.arange(t) < m, t / m, 0.0) * ones).astype(np.float32)


# Training ends with near-certain devices for all nodes, which leaves nothing to explore. So fine-
# tuning begins with a limited spread of logits, and with a smaller entropy bonus than training.
_FINE_TUNING_SPREAD, _FINE_TUNING_ENTROPY = 1.0, 0.005
_SAMPLES = 16  # the most placements that `gdp_zero_shot` evaluates: the likeliest one, and samples


def search_gdp(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, way: str = "scratch",
    weights: Optional[str] = None, network_config: Optional[GdpConfig] = None,
    training: Optional[PpoConfig] = None) -> np.ndarray:
  """Runs GDP on a problem: samples placements and, unless `way` is "zero_shot", learns from them.

  Args:
    problem: its groups are not used.
    budget: counted from when the problem was made.
    seed: of weights and samples.
    way: "scratch" trains a network on the graph at hand, and with weights is the same as
      "fine_tune"; "fine_tune" trains the weights further; "zero_shot" learns nothing.
    weights: directory of a training run, or of its weights; optional for "scratch" alone (the
      registry of methods refuses the others without weights).
    network_config: of a network from scratch; its `max_devices` is replaced by the cluster's.
    training: settings of PPO.

  Returns:
    [N] the best placement that the problem has seen.

  Raises:
    PlacementError: there are no such weights, or they are for fewer devices.
  """
  if way == "scratch" and weights is not None:
    way = "fine_tune"
  # Two independent seeds, so that weights and samples do not share random numbers.
  weight_seed, sample_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
  nodes = gdp_inputs.node_problem(problem)
  if weights is None:
    network = GdpNetwork(
        dataclasses.replace(network_config or GdpConfig(), max_devices=nodes.num_devices),
        weight_seed)
  else:
    network = load_network(weights)
  inputs = gdp_inputs.node_inputs(GroupedGraph.of(nodes), network.config.max_devices)
  policy = GdpPolicy([inputs], network)
  left = nodes.search_log.remaining_evaluations(budget)  # evaluations; None without such a limit
  if way == "zero_shot":
    samples = _SAMPLES if left is None else min(_SAMPLES, left)
    # The likeliest placement is evaluated first, then samples: [1 + samples, M].
    placements = policy.greedy()[None]
    if samples > 1:
      sampled, _ = policy.sample(np.random.default_rng(sample_seed), samples - 1)
      placements = np.concatenate([placements, sampled])
    nodes.evaluate(placements)
    return problem.search_log.best_known
  training = training or PpoConfig()
  if way == "fine_tune":
    training = dataclasses.replace(training, entropy=_FINE_TUNING_ENTROPY)
    policy.soften(_FINE_TUNING_SPREAD)  # logits are then close enough for exploration
  # One evaluation is kept for the likeliest placement, which samples of large graphs miss.
  most = None if left is None else max(1, left - 1)
  part = dataclasses.replace(
      budget, max_evaluations=None if most is None else nodes.search_log.evaluations + most)
  # The learner samples a batch, evaluates it and updates, until its part of the budget is used up.
  one_shot.search(nodes, GdpLearner(policy, training, sample_seed), part)
  # Without a limit (None) or with one evaluation left: evaluate the likeliest placement.
  if nodes.search_log.remaining_evaluations(budget) != 0:
    nodes.evaluate(policy.greedy())
  return problem.search_log.best_known
