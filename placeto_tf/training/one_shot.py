"""Trains policies that place a whole graph in one action: sample, simulate, update.

The interface of the policies is `OneShotPolicy` in `policies/one_shot_policy.py`. Training takes
three lines:

  policy = SomePolicy(problem, ...)                     # sample, log_prob
  trainer = search_trainer(problem, policy, config, seed, batch_size)
  search(problem, trainer, budget)                      # until the budget is used up

or, for one policy on many graphs, an `OneShotTrainer` with one environment per graph, whose
`update(graphs)` samples, simulates and learns from a batch on each of the graphs named.

Environments, time steps, trajectories and metrics are tf-agents'. Its agents do not fit: they take
a policy for a distribution with a log probability for each part of an action, independent of the
others, while here every device depends on those drawn before it (the LSTM's state, the memory of a
Transformer), some decisions are no part of the action (the hierarchical policy's
groups), and the graphs of one policy have different numbers of groups. So the two losses are here:
REINFORCE with a moving-average baseline (Mirhoseini et al. 2017, section 3.1) and PPO's clipped
objective (Schulman et al. 2017, equation 7). Each decision's ratio is clipped on its own, because
the ratio of thousands of decisions together would always be clipped.

Legend: B placements side by side, A decisions per placement.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Callable, Dict, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
from tf_agents.metrics import py_metrics
from tf_agents.trajectories import policy_step, trajectory

from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.one_shot_environment import (
  INVALID_REWARD,
  OneShotEnvironment,
)
from placeto_tf.training.one_shot_policy import Loss, OneShotPolicy, Sample
from placeto_tf.training.schedules import between, spent_share


@dataclasses.dataclass(frozen=True)
class OneShotConfig:
  """How a one-shot policy learns.

  Attributes:
    batch_size: B, placements sampled for an update (of each graph).
    algorithm: "reinforce" or "ppo".
    baseline: "moving_average" of the rewards, or "batch", the mean of the batch at hand.
    baseline_decay: share of the moving average that an update keeps.
    scale_advantages: whether advantages are divided by their deviation over the batch.
    epochs: gradient steps on one batch; 1 for "reinforce".
    clip: PPO's, of the ratio of probabilities.
    learning_rate, final_learning_rate: Adam's, at the start and the end of the budget.
    entropy, final_entropy: weight of the mean entropy of a decision, likewise.
    gradient_clip: largest norm of all gradients together.
    invalid_reward: of a placement that does not fit.
  """

  batch_size: int = 16
  algorithm: str = "reinforce"
  baseline: str = "moving_average"
  baseline_decay: float = 0.9
  scale_advantages: bool = False
  epochs: int = 1
  clip: float = 0.2
  learning_rate: float = 1e-3
  final_learning_rate: float = 1e-3
  entropy: float = 0.0
  final_entropy: float = 0.0
  gradient_clip: float = 1.0
  invalid_reward: float = INVALID_REWARD

  def __post_init__(self) -> None:
    for name, valid in (("algorithm", ("reinforce", "ppo")),
                        ("baseline", ("moving_average", "batch"))):
      if getattr(self, name) not in valid:
        raise PlacementError(
            f"{name} is {getattr(self, name)!r}; expected one of {', '.join(valid)}")
    check_at_least(1, self, "batch_size", "epochs")
    if self.algorithm == "reinforce" and self.epochs != 1:
      raise PlacementError(
          f"epochs is {self.epochs}, but REINFORCE may use a batch once; choose ppo for more")
    if not 0 <= self.baseline_decay < 1:
      raise PlacementError(
          f"baseline_decay is {self.baseline_decay}; expected a number from 0 to below 1")


def reinforce_loss(
    advantages: tf.Tensor, entropy_coefficient: tf.Tensor, num_decisions: int) -> Loss:
  """Minus the mean over B of advantage times log probability, less the entropy bonus.

  The bonus is the mean entropy of a decision, whatever their number.

  Args:
    advantages: [B].
    entropy_coefficient: scalar.
    num_decisions: A.
  """

  def loss(log_probs, entropy, columns):
    del columns
    gain = tf.reduce_mean(advantages * tf.reduce_sum(log_probs, axis=1))
    bonus = tf.reduce_mean(tf.reduce_sum(entropy, axis=1)) / num_decisions
    return -gain - entropy_coefficient * bonus

  return loss


def ppo_loss(
    advantages: tf.Tensor, old_log_probs: tf.Tensor, clip: float, entropy_coefficient: tf.Tensor,
    num_decisions: int) -> Loss:
  """PPO's clipped objective, the ratio of each decision [B, A] on its own; mean over decisions."""

  def loss(log_probs, entropy, columns):
    ratio = tf.exp(log_probs - old_log_probs[:, columns])
    clipped = tf.clip_by_value(ratio, 1 - clip, 1 + clip)
    gain = tf.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    terms = gain + entropy_coefficient * entropy
    return -tf.reduce_mean(tf.reduce_sum(terms, axis=1)) / num_decisions

  return loss


class MovingBaseline:
  """The moving average of the mean reward of each graph; for the first batch, its mean."""

  def __init__(self, num_graphs: int, decay: float):
    self.value = tf.Variable(
        np.full(num_graphs, np.nan), dtype=tf.float64, trainable=False, name="baseline")
    self._decay = decay

  def advantages(self, graph: int, rewards: np.ndarray) -> np.ndarray:
    """[B] rewards minus the average before them; then updates the average."""
    values, mean = self.value.numpy(), float(np.mean(rewards))
    before = mean if np.isnan(values[graph]) else values[graph]
    values[graph] = self._decay * before + (1 - self._decay) * mean
    self.value.assign(values)
    return rewards - before


class OneShotTrainer:
  """A policy, its graphs' environments, and its updates.

  Attributes:
    rng: of the draws, for a run that is resumed.
    updates, skipped: how many; the latter for gradients that were not numbers.
    losses: of the last update, for summaries.
    average_return: tf-agents' metric over the last 100 placements.
    checkpoint: `tf.train.Checkpoint` of weights, optimizer and baselines.
  """

  def __init__(
      self, policy: OneShotPolicy, environments: Sequence[OneShotEnvironment],
      config: OneShotConfig, seed: int = 0):
    """Args: seed: of the actions; the policy has its own for its weights."""
    self.policy, self.environments, self.config = policy, list(environments), config
    self.rng = np.random.default_rng(seed)
    self._baseline = MovingBaseline(len(self.environments), config.baseline_decay)
    # Built here; otherwise the first update is traced twice, with and without making Adam's slots.
    self._optimizer = tf.keras.optimizers.Adam(config.learning_rate, epsilon=1e-8)
    self._optimizer.build(policy.trainable_variables)
    self._entropy = tf.Variable(config.entropy, dtype=tf.float32, trainable=False)
    self._steps: Dict[Tuple[int, ...], Callable] = {}
    self.average_return = py_metrics.AverageReturnMetric(buffer_size=100)
    self.updates, self.skipped = 0, 0
    self.losses: Dict[str, float] = {}
    self.checkpoint = tf.train.Checkpoint(
        policy=policy, optimizer=self._optimizer, baseline=self._baseline.value)

  def update(self, graphs: Sequence[int] = (0,), spent: float = 0.0) -> np.ndarray:
    """Samples a batch of placements of each of the graphs, simulates them and learns from them.

    Args:
      graphs: indices of different graphs; the update follows the mean of their gradients.
      spent: share of the budget that is used up.

    Returns:
      [graphs, B] float32 rewards.
    """
    samples, rewards = [], []
    for graph in graphs:
      sample = self.policy.sample(self.rng, self.environments[graph].batch_size, graph)
      samples.append(sample)
      rewards.append(self._play(graph, sample))
    self.learn(graphs, samples, rewards, spent)
    return np.stack(rewards)

  def learn(
      self, graphs: Sequence[int], samples: Sequence[Sample], rewards: Sequence[np.ndarray],
      spent: float) -> None:
    """Learns from a batch of simulated placements of each of the graphs.

    Args:
      graphs, spent: see `update`.
      samples, rewards: of each of the graphs; rewards are [B] float32.
    """
    config = self.config
    self._optimizer.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    self._entropy.assign(between(config.entropy, config.final_entropy, spent))
    advantages = [self._advantages(graph, each) for graph, each in zip(graphs, rewards)]
    batch = [
        (tf.nest.map_structure(tf.constant, sample.choices),
         tf.constant(each, tf.float32), tf.constant(sample.log_probs, tf.float32))
        for sample, each in zip(samples, advantages)]
    for _ in range(config.epochs):
      loss, norm = self._step(tuple(graphs))(batch)
      if not np.isfinite(norm.numpy()):
        self.skipped += 1
        break
      self.losses = {"loss": float(loss), "gradient_norm": float(norm)}
    self.updates += 1

  def _play(self, graph: int, sample: Sample) -> np.ndarray:
    """[B] rewards."""
    environment = self.environments[graph]
    first = environment.reset()
    last = environment.step(sample.placements)
    # Without the thousands of devices: metrics use only rewards and step types.
    played = trajectory.from_transition(first, policy_step.PolicyStep(action=()), last)
    for b in range(environment.batch_size):
      self.average_return(tf.nest.map_structure(lambda x, b=b: x[b:b + 1], played))
    return np.asarray(last.reward)

  def _advantages(self, graph: int, rewards: np.ndarray) -> np.ndarray:
    advantages = self._baseline.advantages(graph, rewards.astype(np.float64))
    if self.config.baseline == "batch":
      advantages = rewards - rewards.mean()
    if self.config.scale_advantages:
      advantages = advantages / max(float(np.std(rewards)), 1e-8)
    return advantages

  def _step(self, graphs: Tuple[int, ...]) -> Callable:
    if graphs not in self._steps:
      self._steps[graphs] = tf.function(
          lambda batch: self._learn(graphs, batch), autograph=False)
    return self._steps[graphs]

  def _learn(self, graphs, batch):
    """One gradient step; leaves the weights as they are where a gradient is not a number."""
    variables = self.policy.trainable_variables
    losses, sums = [], [tf.zeros_like(variable) for variable in variables]
    for graph, (choices, advantages, old_log_probs) in zip(graphs, batch):
      loss, gradients = self.policy.gradients(
          choices, self._loss(advantages, old_log_probs), graph)
      losses.append(loss)
      sums = [total if gradient is None else total + tf.convert_to_tensor(gradient) / len(graphs)
              for total, gradient in zip(sums, gradients)]
    clipped, norm = tf.clip_by_global_norm(sums, self.config.gradient_clip)

    def apply():
      self._optimizer.apply_gradients(zip(clipped, variables))
      return norm

    return tf.add_n(losses) / len(graphs), tf.cond(
        tf.math.is_finite(norm), apply, lambda: norm)

  def _loss(self, advantages: tf.Tensor, old_log_probs: tf.Tensor) -> Loss:
    decisions = old_log_probs.shape[1]
    if self.config.algorithm == "ppo":
      return ppo_loss(advantages, old_log_probs, self.config.clip, self._entropy, decisions)
    return reinforce_loss(advantages, self._entropy, decisions)


def search_trainer(
    problem: PlacementProblem, policy: OneShotPolicy, config: OneShotConfig, budget: Budget,
    seed: int = 0) -> OneShotTrainer:
  """The trainer of a policy on the groups of one problem; its batch is within the budget."""
  remaining = problem.account.remaining_evaluations(budget)
  batch_size = config.batch_size if remaining is None else max(
      1, min(config.batch_size, remaining))
  environment = OneShotEnvironment(
      problem.allowed, SimulatedCost(problem), batch_size=batch_size,
      invalid_reward=config.invalid_reward)
  return OneShotTrainer(policy, [environment], config, seed)


def search(
    problem: PlacementProblem, trainer: OneShotTrainer, budget: Budget, *,
    root_dir: Optional[str] = None) -> None:
  """Trains on the problem's graph until the budget is used up; the problem remembers the best.

  With `max_evaluations` alone the search is the same for the same seeds on one machine, bit for
  bit. It stops before a batch that could exceed the budget. If nothing was evaluated before,
  it evaluates one batch even if the time is up, so that there is an answer.

  Args:
    problem: of the trainer's only environment.
    trainer: see `search_trainer`.
    budget: counted from when the problem was made.
    root_dir: where TensorBoard events go (in train/); None writes none.
  """
  began = problem.account.evaluations, problem.account.seconds
  environment = trainer.environments[0]
  writer = None if root_dir is None else tf.summary.create_file_writer(
      os.path.join(root_dir, "train"))
  while problem.account.best_placement is None or not problem.account.exhausted(budget):
    left = problem.account.remaining_evaluations(budget)
    if left is not None and left < environment.batch_size:
      break
    trainer.update(spent=spent_share(problem, budget, began))
    if writer is not None:
      _summarize(writer, problem, trainer)
  if writer is not None:
    writer.close()


def _summarize(
    writer: tf.summary.SummaryWriter, problem: PlacementProblem, trainer: OneShotTrainer) -> None:
  """The step is the number of evaluations, as for every policy."""
  environment = trainer.environments[0]
  scalars = {
      "StepTime/best_us": problem.account.best_objective_us,
      "Metrics/AverageReturn": trainer.average_return.result(),
      "Metrics/fitting": environment.fits.mean(),
  }
  if environment.fits.any():
    scalars["StepTime/current_us"] = environment.step_time_us[environment.fits].mean()
  scalars.update({f"Losses/{name}": value for name, value in trainer.losses.items()})
  with writer.as_default():
    for name, value in scalars.items():
      tf.summary.scalar(name, float(value), step=problem.account.evaluations)
