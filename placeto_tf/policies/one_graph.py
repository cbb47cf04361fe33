"""Policies that are made for one graph (the RNN-based and the hierarchical one) and their training.

The folder of such a policy declares a `OneGraphPolicy`. A method trains the policy until its budget
is used up (`place`); `scripts/train.py` makes a given number of the same updates
(`OneGraphLearner`). A root directory then holds the files that `training.runs` lists, and

  train/           checkpoints: weights, optimizer, baseline, random state, best placement
  train/events*    TensorBoard: mean and best step time, reward, loss
  placement.json   the best placement so far

On one machine, a run that is killed and resumed ends with the same weights, to the bit, as a run
that is not interrupted.

Dimensions: N ops.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow
from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training import trainer
from placeto_tf.training.collecting import Maker
from placeto_tf.training.learner import Learner
from placeto_tf.training.one_shot import (
  ReinforceConfig,
  ReinforceLearner,
  search,
  search_environment,
)
from placeto_tf.training.one_shot_policy import OneShotPolicy
from placeto_tf.training.problems import make_problem
from placeto_tf.training.run_config import RunConfig
from placeto_tf.training.trainable import Trainable


@dataclasses.dataclass(frozen=True)
class OneGraphPolicy:
  """A policy that is made for one graph.

  Attributes:
    name: of the policy.
    options: the policy's configuration; its field `training` is a `ReinforceConfig`.
    make: (problem, options, seed of weights) -> the problem in the policy's groups, and the policy.
  """

  name: str
  options: Any
  make: Callable[[PlacementProblem, Any, int], Tuple[PlacementProblem, OneShotPolicy]]

  def place(
      self, problem: PlacementProblem, budget: Budget, seed: int = 0, *, config: Any = None,
      root_dir: Optional[str] = None) -> np.ndarray:
    """Trains a policy on a problem until the budget is used up.

    Args:
      problem: its own groups are not used.
      budget: counted from when the problem was made.
      seed: of weights and samples.
      config: the policy's configuration, instead of `options`.
      root_dir: as for `one_shot.search`.

    Returns:
      [N] the best placement that the problem has seen.
    """
    options = config or self.options
    # Independent seeds: the initial weights do not depend on the number of samples.
    weights, samples = seeds(seed)
    # The policy makes its own groups; both problems share one search log and one budget.
    grouped, policy = self.make(problem, options, weights)
    environment = search_environment(
        grouped, options.training, budget, decisions=policy.decisions,
        placements=policy.placements)
    learner = ReinforceLearner(policy, environment, options.training, samples)
    search(grouped, learner, environment, budget, root_dir=root_dir)
    return problem.search_log.best_known

  def trainable(self) -> Trainable:
    """Returns the record for `scripts/train.py`."""
    # The graph is given on the command line.
    config = OneGraphConfig((), policy=self.name, training=self.options.training)
    make = functools.partial(OneGraphLearner, self)
    return Trainable(self.name, config, functools.partial(trainer.train, make))


def seeds(seed: int) -> Tuple[int, int]:
  """Derives two seeds from one: of a policy's weights and of its samples.

  Args:
    seed: of the run.
  """
  return tuple(np.random.SeedSequence(seed).generate_state(2).tolist())


@dataclasses.dataclass(frozen=True)
class OneGraphConfig(RunConfig):
  """The configuration of a run: policy, graph, duration.

  Attributes:
    graphs, clusters: one of each; there are no held-out graphs, so nothing is watched.
    iterations: number of updates, of `training.batch_size` placements each.
    checkpoint_every, seed: see `RunConfig`.
    policy: name of the policy.
    training: settings of REINFORCE.
  """

  policy: str = ""
  training: ReinforceConfig = ReinforceConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    for name, most in (("graphs", 1), ("clusters", 1), ("held_out", 0)):
      found = len(getattr(self, name))
      # One graph, one cluster, nothing held out.
      if found > most:
        raise PlacetoError(
            f"{name} has {found} of them; expected {'one' if most else 'none'}: {self.policy} is "
            "made for one graph")


class OneGraphLearner(Learner):
  """A policy and the problem of its graph, which remembers the best placement so far.

  Attributes:
    network: the policy.
    problem: the problem, in the policy's groups.
  """

  rate = "updates_a_second"
  config: OneGraphConfig

  def __init__(
      self, policy: OneGraphPolicy, config: OneGraphConfig, root_dir: str, *,
      warm_start: Optional[str] = None, **given: Any):
    """Makes the policy of the only graph; see the base class.

    Args:
      policy: record of the policy.
      config, root_dir: of the run.
      warm_start: None.
      **given: problems.

    Raises:
      PlacetoError: a warm start is given, but weights of such a policy serve one graph only.
    """
    if warm_start is not None:
      raise PlacetoError(
          f"warm_start is {warm_start!r}, but the weights of {config.policy} are made for one "
          "graph; give none")
    super().__init__(config, root_dir, **given)
    self.policy = config.policy
    weights, samples = seeds(config.seed)
    self.problem, self.network = policy.make(self.problems[0], policy.options, weights)
    self._environment = search_environment(
        self.problem, config.training, decisions=self.network.decisions,
        placements=self.network.placements)
    self.learner = ReinforceLearner(self.network, self._environment, config.training, samples)
    self.rng, self.tracked = self.learner.rng, self.learner.tracked

  def make_problems(
      self, graphs: Sequence[str], clusters: Sequence[str]) -> List[PlacementProblem]:
    """Makes the problem of the only graph on the only cluster.

    Args:
      graphs: at most one name.
      clusters: one, as `Cluster.parse` takes it.

    Returns:
      One problem, or none without a graph.
    """
    return [make_problem(load_graph(graphs[0]), Cluster.parse(clusters[0]))] if graphs else []

  def specs(self, iteration: int) -> List[None]:
    """Returns the spec of one batch, which needs no content.

    Args:
      iteration: from 1 on.
    """
    return [None]

  @property
  def collector(self) -> Maker:
    """Returns a collector that samples with this learner's own policy, which counts the samples."""
    # The collector runs in this process, because `learn` reads this environment's figures.
    return lambda problems: lambda weights, spec: self.learner.play()

  def portable(self, num_threads: Optional[int]) -> List[PlacementProblem]:
    """See the base class."""
    return [self.problem]

  @property
  def weights(self) -> None:
    """Returns None, because collectors of this process use the policy itself."""
    return None

  def steps_of(self, experience: Any) -> int:
    """Returns 1, for one update."""
    return 1

  def learn(self, experiences: List[Any], iteration: int) -> Dict[str, float]:
    """Makes one update; see the base class.

    Args:
      experiences: one batch of placements.
      iteration: from 1 on.

    Returns:
      The loss, the mean reward, the share of placements that fit, and step times in us and ms.
    """
    losses = self.learner.learn(experiences, (iteration - 1) / self.config.iterations)
    environment = self._environment
    best_us = float(self.problem.search_log.best_objective_us)
    found = {**losses, "reward": float(experiences[0].reward.mean()),
             "fitting": float(environment.fits.mean()), "StepTime/best_us": best_us,
             "best_ms": best_us / 1e3}
    # The mean over placements that fit, because others have a simulated time but cannot run.
    if environment.fits.any():
      found["StepTime/current_us"] = float(environment.step_time_us[environment.fits].mean())
    return found

  def state(self) -> Dict[str, Any]:
    """See the base class."""
    best = self.problem.search_log.best_placement  # [N]; None before the first placement
    return {**super().state(), "best": None if best is None else best.tolist(),
            "evaluations": self.problem.search_log.evaluations}

  def load_state(self, state: Dict[str, Any]) -> None:
    """See the base class."""
    super().load_state(state)
    if state["best"] is not None:
      # Evaluating the stored placement makes it the best again; then the count is restored.
      self.problem.evaluate_ops(np.asarray(state["best"], dtype=np.int32))
    self.problem.search_log.evaluations = state["evaluations"]

  def export(self, iteration: int) -> None:
    """Writes placement.json, once there is a placement."""
    problem = self.problem
    if problem.search_log.best_placement is not None:
      Placement.from_indices(
          problem.graph, problem.cluster, problem.search_log.best_placement, method=self.policy,
          seed=self.config.seed, evaluations=problem.search_log.evaluations,
          step_time_us=float(
              problem.simulator.simulate(problem.search_log.best_placement).step_time_us),
      ).save(os.path.join(self.root_dir, "placement.json"))
