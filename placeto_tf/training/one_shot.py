"""Trains policies that place a whole graph in one action: sample, simulate, `agent.train`.

An episode is one step, as in a bandit whose action is a vector. `ReinforceLearner` trains a policy
of one graph (`OneShotPolicy`) by tf-agents' `ReinforceAgent`; its baseline is the moving average of
the rewards (Mirhoseini et al. 2017, section 3.1) or the batch's mean. GDP, whose policy is for many
graphs, learns by PPO (`policies/gdp/learner.py`). `search` trains a policy until its budget is used
up:

  learner = ReinforceLearner(policy, environment, config, seed)
  search(problem, learner, budget)

The reward is that of Mirhoseini et al. (2017, section 3; 2018, section 3) and of GDP (section 3):
minus the square root of the step time in seconds, or a constant if a placement does not fit.

Dimensions: B placements side by side, A decisions per placement, G groups (or ops), D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.specs import array_spec, tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

from placeto_tf.environments import driving
from placeto_tf.errors import check_at_least, check_one_of
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot_policy import OneShotPolicy
from placeto_tf.training.updates import adam, attempt, between, spent_share

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
