"""Trains Placeto on one graph and, by doing so, improves its placement.

What counts is the best placement met on the way, which the problem remembers; the trained policy
is thrown away. Sampling is done here and in NumPy, from logits that the agent's collect policy
gives, so that TensorFlow's global seed neither matters nor is touched.

Legend: B episodes side by side, G groups, D devices, K groups placed in one step, T steps.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Callable, Dict, List, Optional

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.encoding.legacy_keras import check_legacy_keras
from placeto_tf.errors import PlacementError
from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.search.problem import Budget, PlacementProblem
from placeto_tf.search.units import placed_units

check_legacy_keras()

import tensorflow as tf  # noqa: E402  the check must come first
from tf_agents.specs import tensor_spec  # noqa: E402

from placeto_tf.environments.cost import SimulatedCost  # noqa: E402
from placeto_tf.environments.placement_environment import PlacementEnvironment  # noqa: E402
from placeto_tf.policies.placeto import agent as agent_lib  # noqa: E402
from placeto_tf.policies.placeto.network import PlacetoNetwork  # noqa: E402
from placeto_tf.training.placeto_config import PlacetoConfig  # noqa: E402
from placeto_tf.training.returns import StepBaseline, discounted_returns  # noqa: E402
from placeto_tf.training.schedules import between, spent_share  # noqa: E402

Progress = Callable[[int, float, float], None]

_IDLE_EPISODES = 20  # in a row without an evaluation, after which a search ends


@dataclasses.dataclass(frozen=True, eq=False)
class Improvement:
  """What a search ended with.

  Attributes:
    placement: [G] int32, the problem's groups where most of each is in the best placement met;
      what finer levels found is lost in it.
    op_placement: [N] int32, devices of ops in the best placement met.
    start_objective_us, objective_us: of the start and of the best.
    evaluations: placements this search evaluated, the start included.
    steps: decisions of K groups, over all episodes.
    updates: of the policy.
  """

  placement: np.ndarray
  op_placement: np.ndarray
  start_objective_us: float
  objective_us: float
  evaluations: int
  steps: int
  updates: int


def improve(
    problem: PlacementProblem,
    start: np.ndarray,
    budget: Budget,
    seed: int = 0,
    *,
    root_dir: Optional[str] = None,
    progress: Optional[Progress] = None,
    config: Optional[PlacetoConfig] = None,
    policy: str = "placeto",
) -> Improvement:
  """Trains Placeto on the problem's graph for the budget, starting from a placement.

  With `max_evaluations` alone the result is the same for the same seed on one machine, bit for
  bit. The search stops before a step whose evaluations could exceed the budget.

  Args:
    problem: counts the evaluations and remembers the best placement.
    start: [G] int32, or [N] devices of ops. A placement of ops that the problem's groups cannot
      express is started from all the same: on about as many groups that it has on one device each.
    budget: counted from the making of the problem.
    seed: of weights, actions and orders.
    root_dir: where TensorBoard events go (in train/); None writes none.
    progress: called with (evaluations, seconds, best objective in us) after every update.
    config: see `PlacetoConfig`.
    policy: "placeto", or "random": devices drawn uniformly in the same process, to compare with.

  Raises:
    PlacementError: the start is not a placement of the problem, or the policy is unknown.
  """
  if policy not in ("placeto", "random"):
    raise PlacementError(f"policy is {policy!r}; expected placeto or random")
  config = config or PlacetoConfig()
  before, began = problem.evaluations, (problem.evaluations, problem.seconds)
  summary = _Summary(root_dir)
  grouping, allowed, placement = _starting_level(problem, np.asarray(start))
  seeds = np.random.SeedSequence(seed).spawn(len(config.levels))
  search, steps, updates, start_us = None, 0, 0, None
  for i, (factor, share) in enumerate(config.levels):
    part = _share_of(problem, budget, share / sum(later for _, later in config.levels[i:]))
    if search is not None:
      if not search.affordable(budget):
        break
      grouping, allowed, placement = _refine(
          problem, search.op_placement, int(problem.num_groups * factor))
    weights = search.weights if search is not None else None
    search = _Level(problem, grouping, allowed, placement, part, seeds[i], config, policy, weights)
    start_us = search.environment.scale_us if start_us is None else start_us
    search.run(lambda: spent_share(problem, budget, began), summary, progress)
    steps, updates = steps + search.steps, updates + search.actor.updates
  summary.close()
  return Improvement(
      problem.project(search.op_placement), search.op_placement, start_us,
      search.environment.best_objective_us, problem.evaluations - before, steps, updates)


def _share_of(problem: PlacementProblem, budget: Budget, share: float) -> Budget:
  """The budget that ends after this share of what is left of another one."""
  evaluations, seconds = budget.max_evaluations, budget.max_seconds
  if evaluations is not None:
    left = max(0, evaluations - problem.evaluations)
    evaluations = max(1, problem.evaluations + int(np.ceil(share * left)))
  if seconds is not None:
    seconds = problem.seconds + max(1e-9, share * (seconds - problem.seconds))
  return Budget(evaluations, seconds)


def _starting_level(problem: PlacementProblem, start: np.ndarray):
  """Groups, where they may go, and where the start has them."""
  if start.shape != (problem.graph.num_ops,):
    return problem.grouping, problem.allowed, start
  return _refine(problem, start, problem.num_groups)


def _refine(problem: PlacementProblem, placement: np.ndarray, count: int):
  """About `count` groups that a placement [N] has on one device each, and where it has them."""
  units = placed_units(problem, placement, count)
  grouping = number_groups(units.unit_of_op, topological_rank(problem.graph))
  first = np.unique(grouping.group_of_op, return_index=True)[1]
  return grouping, units.allowed[units.unit_of_op[first]], placement[first]


class _Level:
  """A search on one grouping: the environment, who acts in it, and the loop between them."""

  def __init__(
      self, problem, grouping, allowed, start, budget, seed, config, policy, weights):
    remaining = problem.remaining_evaluations(budget)
    rules = config.environment
    if remaining is not None:  # one evaluation goes to the start
      rules = dataclasses.replace(
          rules, num_episodes=max(1, min(rules.num_episodes, remaining - 1)))
    grouped = GroupedGraph.build(problem.graph, problem.costs, problem.cluster, grouping, allowed)
    seeds = seed.generate_state(3)
    self.environment = PlacementEnvironment(
        allowed, SimulatedCost(problem, grouped, grouping), start, config=rules,
        seed=int(seeds[0]))
    self._problem, self._budget, self._grouping = problem, budget, grouping
    self._sample = np.random.default_rng(seeds[1])
    self.actor = (
        _Uniform(allowed) if policy == "random"
        else _Learner(grouped, self.environment, config, int(seeds[2]), weights))
    self.steps = 0

  @property
  def op_placement(self) -> np.ndarray:
    """[N] int32: the best placement met."""
    return self._grouping.expand(self.environment.best_placement)

  @property
  def weights(self) -> Optional[List[np.ndarray]]:
    return self.actor.weights

  def affordable(self, budget: Budget) -> bool:
    """Whether the budget suffices for a step in which every episode is evaluated."""
    left = self._problem.remaining_evaluations(budget)
    return not self._problem.exhausted(budget) and (
        left is None or left >= self.environment.batch_size)

  def run(self, spent: Callable[[], float], summary: _Summary, progress) -> None:
    """Plays episodes, and learns from them, until the budget is used up."""
    environment, problem, actor = self.environment, self._problem, self.actor
    idle = 0
    while self.affordable(self._budget) and idle < _IDLE_EPISODES:
      time_step, evaluations = environment.reset(), problem.evaluations
      returns = np.zeros(environment.batch_size)
      while self.affordable(self._budget) and not time_step.is_last().all():
        observation = time_step.observation
        logits = actor.logits(observation)
        action = (logits + self._sample.gumbel(size=logits.shape)).argmax(-1).astype(np.int32)
        time_step = environment.step(action)
        returns += time_step.reward
        self.steps += environment.batch_size
        last = bool(time_step.is_last().all())
        actor.observe(observation, action, time_step.reward)
        if actor.ready(last):
          actor.update(spent())
          if progress is not None:
            progress(problem.evaluations, problem.seconds, problem.best_objective_us)
      # With a budget of evaluations only, a policy that moves nothing would never come to an end.
      idle = idle + 1 if problem.evaluations == evaluations else 0
      summary.write(problem, environment, returns, actor)


class _Uniform:
  """Every allowed device is as likely; learns nothing."""

  updates = 0
  weights = None
  losses: Dict[str, float] = {}

  def __init__(self, allowed: np.ndarray):
    self._logits = np.where(allowed, 0.0, -np.inf)

  def logits(self, observation):
    return self._logits[observation["current"]]

  def observe(self, observation, action, reward):
    pass

  def ready(self, last):
    return last

  def update(self, spent):
    pass


class _Learner:
  """The agent, what it has seen since its last update, and its updates."""

  def __init__(
      self, grouped: GroupedGraph, environment: PlacementEnvironment, config: PlacetoConfig,
      seed: int, weights: Optional[List[np.ndarray]] = None):
    """Args: weights: of a network for another grouping of the same graph, to go on with."""
    self._config = config
    time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
    action_spec = tensor_spec.from_spec(environment.action_spec())
    network = PlacetoNetwork(
        time_step_spec.observation, action_spec, [grouped], scales_us=[environment.scale_us],
        config=config.network, seed=seed)
    self._agent = agent_lib.PlacetoAgent(
        time_step_spec, action_spec, network, learning_rate=config.learning_rate,
        entropy_coefficient=config.entropy, gradient_clipping=config.gradient_clip)
    self._agent.initialize()
    if weights is not None:
      for variable, value in zip(network.variables, weights):
        variable.assign(value)
    self._rng = np.random.default_rng(seed)
    self._network = network
    self._choice = grouped.allowed.sum(axis=1) > 1

    @tf.function(autograph=False)
    def act(observation):
      distribution, _ = network(observation)
      return distribution.logits

    self._act = act
    self._num_steps = environment.num_steps
    self._baseline = StepBaseline(environment.num_steps, config.baseline_episodes)
    self._first_step, self._seen = 0, []
    self.updates, self.skipped, self.losses = 0, 0, {}

  @property
  def weights(self) -> List[np.ndarray]:
    return [variable.numpy() for variable in self._network.variables]

  def logits(self, observation) -> np.ndarray:
    """[B, K, D]."""
    return self._act(
        {name: tf.constant(value) for name, value in observation.items()}).numpy()

  def observe(self, observation, action, reward) -> None:
    self._seen.append((observation, action, reward))

  def ready(self, last: bool) -> bool:
    return last or len(self._seen) == self._config.steps_per_update

  def update(self, spent: float) -> None:
    """One update from the steps since the last one; `spent` is the share of the budget."""
    config, t = self._config, len(self._seen)
    returns = discounted_returns(
        np.stack([reward for _, _, reward in self._seen]).astype(np.float64), config.discount)
    first = self._first_step
    self._first_step = (first + t) % self._num_steps
    if config.learn:
      advantages = returns - self._baselines(first, returns)
      self._learn(advantages.reshape(-1), spent)
      if config.hold_keep:
        self._network.hold_keep(self._kept())
    self._seen = []
    self.updates += 1

  def _baselines(self, first: int, returns: np.ndarray):
    if self._config.baseline == "none":
      return 0.0
    if self._config.baseline == "moves":
      moved = np.stack([
          (np.take_along_axis(seen[0]["placement"], seen[0]["current"], axis=1) != seen[1]).any(-1)
          for seen in self._seen])  # [T, B]
      return np.where(moved, returns[moved].mean() if moved.any() else 0.0, returns)
    if self._config.baseline == "batch":
      return returns.mean(axis=1, keepdims=True)
    self._baseline.update(first, returns)
    return self._baseline(first, len(returns))

  def _kept(self) -> float:
    """Share of the groups, of those that had a choice, that the last actions left in place."""
    kept = np.stack([
        np.take_along_axis(seen[0]["placement"], seen[0]["current"], axis=1) == seen[1]
        for seen in self._seen])
    choice = self._choice[np.stack([seen[0]["current"] for seen in self._seen])]
    return float(kept[choice].mean()) if choice.any() else 1.0

  def _learn(self, advantages: np.ndarray, spent: float) -> None:
    config = self._config
    if config.advantages == "ranks":
      advantages = _ranks(advantages)
    chosen = np.arange(len(advantages))
    if config.decisions_per_update is not None and len(chosen) > config.decisions_per_update:
      # What taught nothing is drawn rarely; dividing by the odds keeps the gradient's expectation.
      odds = np.abs(advantages) + 0.1 * np.abs(advantages).mean() + 1e-9
      odds /= odds.sum()
      chosen = self._rng.choice(chosen, config.decisions_per_update, p=odds)
      advantages = advantages / (odds * len(advantages))
    observations = {
        name: np.concatenate([seen[0][name] for seen in self._seen])[chosen]
        for name in self._seen[0][0]}
    actions = np.concatenate([seen[1] for seen in self._seen])[chosen]
    self._agent.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    self._agent.entropy_coefficient.assign(between(config.entropy, config.final_entropy, spent))
    try:
      loss = self._agent.train(agent_lib.decisions(observations, actions, advantages[chosen]))
    except tf.errors.InvalidArgumentError:  # the agent found its loss infinite or not a number
      self.skipped += 1
      return
    self.losses = {
        "loss": loss.loss,
        "policy_gradient_loss": loss.extra.policy_gradient_loss,
        "entropy_loss": loss.extra.entropy_regularization_loss,
    }


def _ranks(advantages: np.ndarray) -> np.ndarray:
  """Advantages that are not 0, by rank, evenly from -1 to 1, equals alike; what is 0 stays 0."""
  ranks = np.zeros_like(advantages)
  taught = np.flatnonzero(advantages)
  if len(taught) > 1:
    _, inverse, counts = np.unique(advantages[taught], return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    ranks[taught] = (2 * below + counts - len(taught))[inverse.reshape(-1)] / (len(taught) - 1)
  return ranks


class _Summary:
  """TensorBoard events, one row an episode; the step is the number of evaluations."""

  def __init__(self, root_dir: Optional[str]):
    self._writer = (
        None if root_dir is None
        else tf.summary.create_file_writer(os.path.join(root_dir, "train")))

  def write(self, problem, environment, returns: np.ndarray, actor) -> None:
    if self._writer is None:
      return
    scalars = {
        "StepTime/best_us": problem.best_objective_us,
        "StepTime/current_us": float(environment.objective_us.mean()),
        "Metrics/AverageReturn": float(returns.mean()),
    }
    scalars.update({f"Losses/{name}": float(value) for name, value in actor.losses.items()})
    with self._writer.as_default():
      for name, value in scalars.items():
        tf.summary.scalar(name, value, step=problem.evaluations)

  def close(self) -> None:
    if self._writer is not None:
      self._writer.close()
