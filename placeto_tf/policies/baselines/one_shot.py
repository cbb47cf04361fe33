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

Samples come from NumPy generators, as everywhere: each policy has a compiled pass that samples a
batch, and `play` simulates the batch and makes the trajectory that agents learn from.

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
from placeto_tf.errors import check_at_least, check_one_of
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.updates import adam, attempt, between, spent_share

import tensorflow as tf  # isort: skip
import tensorflow_probability as tfp  # isort: skip
from tf_agents.agents.reinforce import reinforce_agent  # isort: skip
from tf_agents.distributions import masked  # isort: skip
from tf_agents.networks import network  # isort: skip
from tf_agents.specs import distribution_spec, tensor_spec  # isort: skip
from tf_agents.trajectories import time_step as ts  # isort: skip
from tf_agents.trajectories import trajectory  # isort: skip
from tf_agents.utils import common  # isort: skip

# Actions -> log probability of each decision, of the same shape.
LogProbs = Callable[[tf.Tensor], tf.Tensor]

LOG_PROBS = "log_probs"
INVALID_REWARD = -10.0  # of a placement that does not fit
GRADIENT_CLIP = 1.0  # largest norm of all gradients together
_KEPT = 0.9  # weight of the old moving average in an update


class Decisions(tfp.distributions.Distribution):
  """A distribution of decisions whose `log_prob` has the same shape as the given actions."""

  def __init__(
      self, log_probs: Union[LogProbs, tf.Tensor], entropies: Optional[tf.Tensor] = None,
      name: str = "Decisions"):
    """Makes the distribution from log probabilities of any actions, or of sampled actions.

    Args:
      log_probs: a function that computes log probabilities; or the log probabilities of the sampled
        actions, which are then the only actions that may be passed to `log_prob`.
      entropies: entropies of the decisions, if they do not depend on one another.
      name: of the distribution.
    """
    self._log_probs, self._entropies = log_probs, entropies
    super().__init__(
        dtype=tf.int32, reparameterization_type=tfp.distributions.NOT_REPARAMETERIZED,
        validate_args=False, allow_nan_stats=True, name=name,
        parameters={LOG_PROBS: None if callable(log_probs) else log_probs})

  def _log_prob(self, value):
    return self._log_probs(value) if callable(self._log_probs) else self._log_probs

  def _entropy(self):
    if self._entropies is None:
      raise NotImplementedError("the entropy depends on the decisions")
    return self._entropies


class OneShotPolicy(network.DistributionNetwork):
  """Base class: number of the graph -> `Decisions`; one graph unless a policy says otherwise.

  Attributes:
    decisions: the spec of a placement's decisions, [A] int32.
  """

  def __init__(self, num_decisions: int, most: Union[int, np.ndarray], name: str):
    """Declares the specs of observations and actions to tf-agents.

    Args:
      num_decisions: A.
      most: largest value of each decision, or of all decisions.
      name: of the network.
    """
    self.decisions = tensor_spec.BoundedTensorSpec(
        (num_decisions,), tf.int32, 0, most, name="device")
    super().__init__(
        tensor_spec.BoundedTensorSpec([], tf.int32, 0, 0, name="graph"), state_spec=(),
        output_spec=distribution_spec.DistributionSpec(
            Decisions, {LOG_PROBS: tensor_spec.TensorSpec(self.decisions.shape, tf.float32)},
            sample_spec=self.decisions),
        name=name)

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns the distribution of decisions, which computes log probabilities of actions.

    Args:
      observation, step_type, training: not used, because there is one graph.
      network_state: passed on.

    Returns:
      `Decisions`, and the network state.
    """
    del observation, step_type, training

    def log_probs(actions):
      # tf-agents gives [B, T, A]; `log_prob` takes [B T, A].
      flat = tf.reshape(actions, [-1, actions.shape[-1]])
      return tf.reshape(self.log_prob(flat), tf.shape(actions))

    return Decisions(log_probs), network_state

  def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
    """Samples decisions.

    Args:
      rng: the source of randomness.
      count: number of samples, B.

    Returns:
      [B, A] int32.
    """
    raise NotImplementedError

  def log_prob(self, decisions: tf.Tensor) -> tf.Tensor:
    """Returns [B, A] log p(decision | earlier ones) of decisions [B, A]; 0 without a choice."""
    raise NotImplementedError

  def placements(self, decisions: np.ndarray) -> np.ndarray:
    """Returns [B, G] int32 device of each of the problem's groups."""
    return decisions

  def play(self, problem: PlacementProblem, rng: np.random.Generator, count: int) -> Played:
    """Samples placements of the problem's groups, and simulates them."""
    decisions = self.sample(rng, count)
    return play(problem, decisions, self.placements(decisions))


def log_prob_of(logits: tf.Tensor, allowed: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
  """Returns the log probabilities of actions under masked logits.

  Args:
    logits: [..., K].
    allowed: [..., K] bool; where only one action is allowed, its log probability is 0.
    actions: [...] int32, allowed ones.

  Returns:
    [...] float32.
  """
  return masked.MaskedCategorical(logits, allowed).log_prob(actions)


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
  """Sampled placements of one graph, simulated.

  Attributes:
    steps: tf-agents' trajectory of B episodes, [B, 1, ...]; the observation is the graph's number.
    step_time_us: [B]; infinite where a device is not allowed, which is not simulated.
  """

  steps: trajectory.Trajectory
  step_time_us: np.ndarray


def play(
    problem: PlacementProblem, decisions: np.ndarray, placements: np.ndarray, info: Any = (),
    graph: int = 0) -> Played:
  """Simulates sampled placements.

  Args:
    problem: evaluates the placements.
    decisions: [B, A] int32, the actions.
    placements: [B, G] int32, the devices of the problem's groups.
    info: for the learner, arrays [B, ...].
    graph: number of the problem among those of the policy.

  Returns:
    The episodes and their step times.
  """
  b, groups = placements.shape
  step_time_us, fits = np.full(b, np.inf), np.zeros(b, dtype=bool)
  # [B] bool, rows with every group on an allowed device; only these are evaluated.
  simulated = problem.allowed[np.arange(groups), placements].all(axis=1)
  if simulated.any():
    found = problem.evaluate(placements[simulated])
    step_time_us[simulated], fits[simulated] = found.step_time_us, found.fits
  # Minus the square root of seconds, which weighs differences between slow placements less.
  reward = np.where(fits, -np.sqrt(step_time_us / 1e6), INVALID_REWARD).astype(np.float32)
  steps = trajectory.Trajectory(
      step_type=np.full(b, ts.StepType.FIRST), observation=np.full(b, graph, np.int32),
      action=decisions, policy_info=info, next_step_type=np.full(b, ts.StepType.LAST),
      reward=reward, discount=np.zeros(b, np.float32))
  return Played(tf.nest.map_structure(lambda values: values[:, None], steps), step_time_us)


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
    policy, config, rng, optimizer: of the updates.
    losses: of the last update; empty if the update was undone.
  """

  def __init__(self, policy: Any, config: Any, seed: int):
    """Makes the policy's variables and the optimizer."""
    self.policy, self.config = policy, config
    self.rng = np.random.default_rng(seed)
    policy.create_variables()  # before the optimizer, which makes slots for them
    self.optimizer = adam(config.learning_rate, GRADIENT_CLIP, policy.trainable_variables)
    self.losses: Dict[str, float] = {}

  @property
  def variables(self) -> List[tf.Variable]:
    """Returns all that an update changes."""
    return [*self.policy.variables, *self.optimizer.variables]

  def update(self, problem: PlacementProblem, count: int, spent: float = 0.0) -> None:
    """Samples and simulates a batch and learns from it.

    Args:
      problem: in the policy's groups.
      count: size of the batch.
      spent: the used share of the budget.
    """
    steps = self.policy.play(problem, self.rng, count).steps
    self.losses = attempt(lambda: self.learn([steps], spent), self.variables)

  def learn(self, parts: Sequence[trajectory.Trajectory], spent: float) -> Dict[str, float]:
    """Makes an update from placements.

    Args:
      parts: the steps [B, 1, ...] of each graph.
      spent: share of the budget that is used up, for schedules.
    """
    raise NotImplementedError


class ReinforceLearner(OneShotLearner):
  """A policy of one graph, and its updates by tf-agents' REINFORCE.

  Attributes:
    average: the moving average of rewards; None before the first update.
  """

  def __init__(self, policy: OneShotPolicy, config: ReinforceConfig, seed: int = 0):
    """Builds tf-agents' agent for a policy; see the base class."""
    super().__init__(policy, config, seed)
    # In an episode of one step the return is the reward, for which `learn` gives the advantage.
    agent = reinforce_agent.ReinforceAgent(
        ts.time_step_spec(policy.input_tensor_spec), policy.decisions, policy, self.optimizer,
        normalize_returns=False,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))
    self._train = common.function(agent.train)
    self.average: Optional[float] = None

  def learn(self, parts: Sequence[trajectory.Trajectory], spent: float) -> Dict[str, float]:
    """Updates the policy from one batch of placements; see the base class.

    Args:
      parts: one batch.
      spent: share of the budget that is used up, for the learning rate.
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


def search(problem: PlacementProblem, learner: OneShotLearner, budget: Budget) -> None:
  """Trains on the problem's graph until the budget is used up; the problem remembers the best.

  If only `max_evaluations` is limited, the same seeds give the same search on one machine, bit for
  bit. The search stops before a batch that could exceed the budget. If nothing was evaluated
  before, one batch is evaluated even if the time is up, so that there is a result.

  Args:
    problem: in the groups of the learner's policy.
    learner: samples batches, and learns from them.
    budget: counted from when the problem was made.
  """
  log, count = problem.search_log, learner.config.batch_size
  began, left = (log.evaluations, log.seconds), log.remaining_evaluations(budget)
  # A budget smaller than a batch is one smaller batch.
  if left is not None:
    count = max(1, min(count, left))
  while log.best_placement is None or not log.exhausted(budget):
    left = log.remaining_evaluations(budget)
    # A whole batch must fit into the evaluations that are left.
    if left is not None and left < count:
      break
    learner.update(problem, count, spent_share(problem, budget, began))


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
    search(grouped, ReinforceLearner(policy, options.training, samples), budget)
    return problem.search_log.best_known
