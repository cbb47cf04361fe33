"""One-shot policies (rnn, hierarchical, gdp) and their training: sample, simulate, `agent.train`.

A one-shot policy places a whole graph in one action: an episode is one step, as in a bandit whose
action is a vector of decisions (a device for each group and, if groups are sampled as well, a group
for each op). A decision, its probability and its entropy may depend on earlier decisions. So the
network returns `Decisions`, a distribution of the whole vector that has the log probability of each
decision; tf-agents' agents sum these.

`ReinforceLearner` trains a policy of one graph (`OneShotPolicy`) by tf-agents' `ReinforceAgent`;
its baseline is the moving average of the rewards (Mirhoseini et al. 2017, section 3.1) or the
batch's mean. GDP, whose policy is for many graphs, learns by PPO (`gdp.GdpLearner`). `search`
trains a policy until its budget is used up. The module of a policy that learns one graph from
scratch declares a `OneGraphPolicy`, whose `place` is the policy's method.

Samples come from NumPy generators, as everywhere (see `driving`): each policy has a compiled pass
that samples a batch, and `act` wraps that pass for a driver.

The reward is that of Mirhoseini et al. (2017, section 3; 2018, section 3) and of GDP (section 3):
minus the square root of the step time in seconds, or a constant if a placement does not fit.

Dimensions: B placements side by side, A decisions per placement, N ops, G groups (or ops), D
devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow
from placeto_tf.environments import driving
from placeto_tf.errors import check_at_least, check_one_of
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.updates import adam, attempt, between, spent_share

import tensorflow as tf  # isort: skip
import tensorflow_probability as tfp  # isort: skip
from tf_agents.agents.reinforce import reinforce_agent  # isort: skip
from tf_agents.distributions import masked  # isort: skip
from tf_agents.networks import network  # isort: skip
from tf_agents.specs import array_spec, distribution_spec, tensor_spec  # isort: skip
from tf_agents.trajectories import time_step as ts  # isort: skip
from tf_agents.trajectories import trajectory  # isort: skip
from tf_agents.utils import common  # isort: skip

# Actions -> log probability of each decision, of the same shape.
LogProbs = Callable[[tf.Tensor], tf.Tensor]

LOG_PROBS = "log_probs"


class Decisions(tfp.distributions.Distribution):
  """A distribution of decisions whose `log_prob` has the same shape as the given actions."""

  def __init__(
      self, of: Optional[LogProbs] = None, entropies: Optional[tf.Tensor] = None,
      log_probs: Optional[tf.Tensor] = None, name: str = "Decisions"):
    """Makes the distribution from log probabilities of any actions, or of sampled actions.

    Args:
      of: function that computes log probabilities.
      entropies: entropies of the decisions, if they do not depend on one another.
      log_probs: instead of `of`, the log probabilities of the sampled actions, which are then the
        only actions that may be passed to `log_prob`.
      name: of the distribution.
    """
    self._of = (lambda actions: log_probs) if of is None else of
    self._entropies = entropies
    super().__init__(
        dtype=tf.int32, reparameterization_type=tfp.distributions.NOT_REPARAMETERIZED,
        validate_args=False, allow_nan_stats=True, parameters={LOG_PROBS: log_probs}, name=name)

  def _log_prob(self, value):
    return self._of(value)

  def _entropy(self):
    if self._entropies is None:
      raise NotImplementedError("the entropy depends on the decisions")
    return self._entropies


class OneShotPolicy(network.DistributionNetwork):
  """Base class: number of the graph -> `Decisions`; one graph unless a policy says otherwise.

  Attributes:
    decisions: spec of an action of its environment, [A].
  """

  def __init__(self, num_decisions: int, most: Union[int, np.ndarray], name: str):
    """Declares the specs of observations and actions to tf-agents.

    Args:
      num_decisions: A.
      most: largest value of each decision, or of all decisions.
      name: of the network.
    """
    self.decisions = array_spec.BoundedArraySpec((num_decisions,), np.int32, 0, most, name="device")
    spec = tensor_spec.from_spec(self.decisions)
    super().__init__(
        tensor_spec.BoundedTensorSpec([], tf.int32, 0, 0, name="graph"), state_spec=(),
        output_spec=distribution_spec.DistributionSpec(
            Decisions, {LOG_PROBS: tensor_spec.TensorSpec(spec.shape, tf.float32)},
            sample_spec=spec),
        name=name)

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns the distribution of decisions, which computes log probabilities of actions.

    Args:
      observation: [B] int32 number of the graph; ignored, because there is one graph.
      step_type, training: ignored.
      network_state: empty.

    Returns:
      (`Decisions`, network_state).
    """
    del observation, step_type, training
    return Decisions(self._log_probs_of), network_state

  def _log_probs_of(self, actions: tf.Tensor) -> tf.Tensor:
    # tf-agents gives [B, T, A]; `log_prob` takes [B T, A].
    flat = tf.reshape(actions, [-1, actions.shape[-1]])
    return tf.reshape(self.log_prob(flat), tf.shape(actions))

  def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
    """Samples decisions.

    All randomness comes from `rng`; TensorFlow's global seed has no effect and is not changed.
    Devices that a group may not use are never sampled.

    Args:
      rng: the source of randomness.
      count: B, number of placements.

    Returns:
      [count, A] int32 decisions.
    """
    raise NotImplementedError

  def log_prob(self, decisions: tf.Tensor) -> tf.Tensor:
    """Returns [B, A] log p(decision | earlier ones) of decisions [B, A]; 0 without a choice."""
    raise NotImplementedError

  def placements(self, decisions: np.ndarray) -> np.ndarray:
    """Returns [B, G] int32 device of each of the environment's groups."""
    return decisions

  def act(self, rng: np.random.Generator) -> Callable[[np.ndarray], Tuple[np.ndarray, Tuple[()]]]:
    """Returns an `Act` of `driving`: observations [B] -> decisions [B, A], no information."""
    return lambda observation: (self.sample(rng, len(observation)), ())


def log_prob_of(logits: tf.Tensor, allowed: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
  """Returns the log probabilities of actions under masked logits.

  Args:
    logits: [..., D].
    allowed: [..., D] bool; other devices have probability 0.
    actions: [...] int32 devices.

  Returns:
    [...] float32; exactly 0 if only one device is allowed.
  """
  return masked.MaskedCategorical(logits, allowed).log_prob(actions)


INVALID_REWARD = -10.0  # of a placement that does not fit
GRADIENT_CLIP = 1.0  # largest norm of all gradients together
_KEPT = 0.9  # weight of the old moving average in an update


class OneShotEnvironment(driving.BatchEnvironment):
  """A batched tf-agents environment; an action decides the device of every group.

  The observation is the index of the graph. The graph does not change, so policies hold a table of
  their graphs.

  Attributes, of the last step:
    step_time_us: [B] float64; infinite for placements on devices that are not allowed, which are
      not simulated.
    fits: [B] bool.
  """

  def __init__(
      self, problem: PlacementProblem, *, batch_size: int, graph: int = 0, num_graphs: int = 1,
      decisions: Optional[array_spec.ArraySpec] = None,
      placements: Callable[[np.ndarray], np.ndarray] = lambda decisions: decisions):
    """Sets the specs.

    Args:
      problem: evaluates placements of its groups. An action with devices that are not allowed gets
        `INVALID_REWARD` and is not simulated.
      batch_size: B.
      graph: the index of this graph, for policies of many graphs.
      num_graphs: number of graphs of the policy.
      decisions: spec of an action; None takes the devices [G] as actions.
      placements: actions [B, ...] -> devices [B, G].
    """
    g, d = problem.allowed.shape
    super().__init__(
        # A scalar, the index of the graph; and the vector of decisions.
        batch_size, array_spec.BoundedArraySpec((), np.int32, 0, num_graphs - 1, name="graph"),
        decisions or array_spec.BoundedArraySpec((g,), np.int32, 0, d - 1, name="device"))
    self._problem, self._placements = problem, placements
    self._observed = np.full(batch_size, graph, dtype=np.int32)  # [B]

  def _reset(self):
    return ts.restart(self._observed, batch_size=self.batch_size)

  def _step(self, action):
    # [B, A] decisions -> [B, G] devices.
    devices = np.asarray(self._placements(action), dtype=np.int32)
    groups = np.arange(len(self._problem.allowed))
    # [B] bool, rows with every group on an allowed device; only these are evaluated.
    simulated = self._problem.allowed[groups, devices].all(axis=1)
    self.step_time_us = np.full(self.batch_size, np.inf)
    self.fits = np.zeros(self.batch_size, dtype=bool)
    if simulated.any():
      found = self._problem.evaluate(devices[simulated])
      self.step_time_us[simulated], self.fits[simulated] = found.step_time_us, found.fits
    # Minus the square root of seconds, which weighs differences between slow placements less.
    reward = np.where(self.fits, -np.sqrt(self.step_time_us / 1e6), INVALID_REWARD)
    return ts.termination(
        self._observed, reward.astype(np.float32), outer_dims=(self.batch_size,))


@dataclasses.dataclass(frozen=True)
class OneShotConfig:
  """Settings of the training of a one-shot policy.

  Attributes:
    batch_size: B, number of placements (of each graph) that are sampled for an update.
    learning_rate, final_learning_rate: Adam's, at the start and the end of the budget.
  """

  batch_size: int = 16
  learning_rate: float = 1e-3
  final_learning_rate: float = 1e-3

  def __post_init__(self) -> None:
    check_at_least(1, self, "batch_size")


@dataclasses.dataclass(frozen=True)
class ReinforceConfig(OneShotConfig):
  """Settings of REINFORCE for a one-shot policy.

  Attributes:
    baseline: "moving_average" of the rewards, or "batch" for the mean of the present batch. The
      advantages over the baseline are divided by the deviation of the batch's rewards.
  """

  baseline: str = "moving_average"

  def __post_init__(self) -> None:
    super().__post_init__()
    check_one_of(("moving_average", "batch"), self, "baseline")


class OneShotLearner:
  """Base class: a policy that places a whole graph in one action, and its updates.

  Attributes:
    policy, environment, optimizer: the policy, the environment in which it plays, and Adam.
    rng: of the samples.
    losses: of the last `update`; empty if it gave NaN and was undone.
  """

  def __init__(
      self, policy: Any, environment: Optional[OneShotEnvironment], config: Any, seed: int):
    """Makes the policy's variables and the optimizer.

    Args:
      policy: the policy to be trained.
      environment: `update` plays in it; None if experience comes from elsewhere.
      config: settings of the training.
      seed: of the sampled actions; the policy has its own seed for its weights.
    """
    self.policy, self.config = policy, config
    self.environment: Any = environment
    self.rng = np.random.default_rng(seed)
    policy.create_variables()  # before the optimizer, which makes slots for them
    self.optimizer = adam(config.learning_rate, GRADIENT_CLIP, policy.trainable_variables)
    self.losses: Dict[str, float] = {}

  @property
  def variables(self) -> List[tf.Variable]:
    """Returns all that an update changes."""
    return [*self.policy.variables, *self.optimizer.variables]

  def play(self) -> trajectory.Trajectory:
    """Samples a batch of placements, simulates them, and returns the steps [B, 1, ...]."""
    return driving.play(self.environment, self.policy.act(self.rng))

  def update(self, spent: float = 0.0) -> None:
    """Samples and simulates a batch and learns from it; `spent` is the used share of the budget."""
    steps = self.play()
    self.losses = attempt(lambda: self.learn([steps], spent), self.variables)

  def learn(self, parts: Sequence[trajectory.Trajectory], spent: float) -> Dict[str, float]:
    """Makes an update from placements.

    Args:
      parts: [B, 1, ...] placements of one graph each, as they were played.
      spent: used share of the budget, in [0, 1], for the schedules.

    Returns:
      "loss", of the update.
    """
    raise NotImplementedError


class ReinforceLearner(OneShotLearner):
  """A policy of one graph, and its updates by tf-agents' REINFORCE.

  Attributes:
    agent: of tf-agents.
    average: moving average of the mean rewards of all batches; None before the first one.
  """

  config: ReinforceConfig

  def __init__(
      self, policy: OneShotPolicy, environment: OneShotEnvironment, config: ReinforceConfig,
      seed: int = 0):
    """Builds tf-agents' agent for a policy.

    Args:
      policy, environment, config, seed: see the base class.
    """
    super().__init__(policy, environment, config, seed)
    # In an episode of one step the return is the reward, for which `learn` gives the advantage.
    self.agent = reinforce_agent.ReinforceAgent(
        tensor_spec.from_spec(environment.time_step_spec()),
        tensor_spec.from_spec(environment.action_spec()), policy, self.optimizer,
        normalize_returns=False,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))
    self._train = common.function(self.agent.train)
    self.average: Optional[float] = None

  def learn(self, parts: Sequence[trajectory.Trajectory], spent: float) -> Dict[str, float]:
    """Updates the policy from one batch of placements; see the base class.

    Args:
      parts: one batch.
      spent: for the learning rate.

    Returns:
      "loss", of the update.
    """
    config, (steps,) = self.config, parts
    self.optimizer.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    mean = float(np.mean(steps.reward, dtype=np.float64))
    # The first batch is its own baseline; later ones are added after the update.
    average = mean if self.average is None else self.average
    baseline = mean if config.baseline == "batch" else average
    # A floor on the deviation: equal rewards give advantages of 0, not NaN.
    advantages = (steps.reward - baseline) / max(float(np.std(steps.reward)), 1e-8)  # [B, 1]
    loss = float(self._train(tf.nest.map_structure(
        tf.constant, steps._replace(reward=advantages.astype(np.float32)))).loss)
    self.average = _KEPT * average + (1 - _KEPT) * mean
    return {"loss": loss}


def search_environment(
    problem: PlacementProblem, config: OneShotConfig, budget: Optional[Budget] = None,
    **options: Any) -> OneShotEnvironment:
  """Returns the environment of a problem's groups.

  Args:
    problem: simulates the placements.
    config: gives the batch size.
    budget: the batch has at most as many placements as evaluations are left.
    **options: of `OneShotEnvironment`.

  Returns:
    The environment, with a batch of at least one placement.
  """
  left = None if budget is None else problem.search_log.remaining_evaluations(budget)
  return OneShotEnvironment(
      problem, **options,
      batch_size=config.batch_size if left is None else max(1, min(config.batch_size, left)))


def search(problem: PlacementProblem, learner: OneShotLearner, budget: Budget) -> None:
  """Trains on the problem's graph until the budget is used up; the problem remembers the best.

  If only `max_evaluations` is limited, the same seeds give the same search on one machine, bit for
  bit. The search stops before a batch that could exceed the budget. If nothing was evaluated
  before, one batch is evaluated even if the time is up, so that there is a result.

  Args:
    problem: of the learner's environment.
    learner: plays in an environment of `search_environment`.
    budget: counted from when the problem was made.
  """
  began = problem.search_log.evaluations, problem.search_log.seconds
  while problem.search_log.best_placement is None or not problem.search_log.exhausted(budget):
    left = problem.search_log.remaining_evaluations(budget)
    # A whole batch must fit into the evaluations that are left.
    if left is not None and left < learner.environment.batch_size:
      break
    learner.update(spent_share(problem, budget, began))


@dataclasses.dataclass(frozen=True)
class OneGraphPolicy:
  """A policy that is made for one graph.

  Attributes:
    options: the policy's configuration; its field `training` is a `ReinforceConfig`.
    make: (problem, options, seed of weights) -> the problem in the policy's groups, and the policy.
  """

  options: Any
  make: Callable[[PlacementProblem, Any, int], Tuple[PlacementProblem, OneShotPolicy]]

  def place(
      self, problem: PlacementProblem, budget: Budget, seed: int = 0, *, config: Any = None
  ) -> np.ndarray:
    """Trains a policy on a problem until the budget is used up.

    Args:
      problem: its own groups are not used.
      budget: counted from when the problem was made.
      seed: of weights and samples.
      config: the policy's configuration, instead of `options`.

    Returns:
      [N] the best placement that the problem has seen.
    """
    options = config or self.options
    # Two independent seeds, of weights and of samples.
    weights, samples = np.random.SeedSequence(seed).generate_state(2).tolist()
    # The policy makes its own groups; both problems share one search log and one budget.
    grouped, policy = self.make(problem, options, weights)
    environment = search_environment(
        grouped, options.training, budget, decisions=policy.decisions,
        placements=policy.placements)
    learner = ReinforceLearner(policy, environment, options.training, samples)
    search(grouped, learner, budget)
    return problem.search_log.best_known
