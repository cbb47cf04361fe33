"""Trains a policy that is made for one graph, the RNN-based or the hierarchical one.

The same updates as those of the methods `rnn` and `hierarchical`, for a given number of them. A
root directory holds what `training.runs` says, and

  train/           checkpoints: weights, optimizer, baseline, random state, best placement
  train/events*    TensorBoard: step time now and best, reward, loss, gradient norm
  placement.json   the best placement so far

A run that is killed and resumed ends with the same weights as one that was not, to the bit on one
machine.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Dict, List, Optional

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow
from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.policies.one_graph import POLICIES, seeds
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training import runs
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.one_shot import OneShotConfig, OneShotTrainer
from placeto_tf.training.one_shot_environment import OneShotEnvironment
from placeto_tf.training.problems import make_problem
from placeto_tf.training.run_config import RunConfig
from placeto_tf.training.trainable import Trainable

import tensorflow as tf  # isort: skip


@dataclasses.dataclass(frozen=True)
class OneGraphConfig(RunConfig):
  """The configuration of a run: policy, graphs, duration.

  Attributes:
    graphs, clusters: one of each; without held-out graphs nothing is watched.
    iterations: updates, of `training.batch_size` placements each.
    checkpoint_every, seed: see `RunConfig`.
    policy: a name in `one_graph.POLICIES`.
    training: by default that of the method.
  """

  policy: str = "rnn"
  training: Optional[OneShotConfig] = None

  def __post_init__(self) -> None:
    if self.policy not in POLICIES:
      raise PlacetoError(
          f"policy {self.policy!r} is not known; expected one of {', '.join(POLICIES)}")
    super().__post_init__()
    for name, most in (("graphs", 1), ("clusters", 1), ("held_out", 0)):
      found = len(getattr(self, name))
      if found > most:
        raise PlacetoError(
            f"{name} has {found} of them; expected {'one' if most else 'none'}: {self.policy} is "
            "made for one graph")


def default_config(policy: str) -> OneGraphConfig:
  """The configuration that the method uses, still without a graph."""
  return OneGraphConfig((), policy=policy, training=POLICIES[policy][0]().training)


class OneGraphTrainer(runs.TrainingRun):
  """One run in its root directory.

  Attributes:
    problem: has the best placement so far.
    policy: that is trained.
  """

  rate = "updates_a_second"

  def __init__(
      self, config: OneGraphConfig, root_dir: str, *, problem: Optional[PlacementProblem] = None,
      options: Any = None, warm_start: Optional[str] = None):
    """Resumes the run in the directory, or begins one.

    Args:
      config: of the run.
      root_dir: its directory.
      problem: instead of the one that `config` names.
      options: the policy's own, see `one_graph`.
      warm_start: not possible: the weights are of one graph.

    Raises:
      PlacetoError: the directory holds a run of another configuration, or the graph or cluster is
        wrong.
    """
    if warm_start is not None:
      raise PlacetoError(
          f"warm_start is {warm_start!r}, but the weights of {config.policy} are made for one "
          "graph; give none")
    super().__init__(config, root_dir)
    search_type, make_policy = POLICIES[config.policy]
    options = options or search_type()
    training = config.training or options.training
    problem = problem or make_problem(
        load_graph(config.graphs[0]), Cluster.parse(config.clusters[0]))
    weights, draws = seeds(config.seed)
    self.problem, self.policy = make_policy(problem, options, weights)
    self._environment = OneShotEnvironment(
        self.problem.allowed, SimulatedCost(self.problem), batch_size=training.batch_size,
        invalid_reward=training.invalid_reward)
    self._trainer = OneShotTrainer(self.policy, [self._environment], training, draws)
    self._resume(trainer=self._trainer.checkpoint)

  def _learn(self, collected: None) -> Optional[np.ndarray]:
    """[1, B] rewards; None where a gradient was not a number."""
    skipped = self._trainer.skipped
    rewards = self._trainer.update(spent=(self.iteration - 1) / self.config.iterations)
    return rewards if self._trainer.skipped == skipped else None

  def _finite(self, learned: np.ndarray) -> bool:
    return bool(np.isfinite(learned).all()) and runs.all_finite(self._variables())

  def _figures(self, collected: None, learned: np.ndarray) -> Dict[str, float]:
    environment = self._environment
    found = {**self._trainer.losses, "reward": float(learned.mean()),
             "fitting": float(environment.fits.mean()),
             "StepTime/best_us": float(self.problem.account.best_objective_us)}
    if environment.fits.any():
      found["StepTime/current_us"] = float(environment.step_time_us[environment.fits].mean())
    return {**found, "best_ms": found["StepTime/best_us"] / 1e3}

  def _variables(self) -> List[tf.Variable]:
    return list(self.policy.trainable_variables)

  def _state(self) -> Dict[str, Any]:
    best = self.problem.account.best_placement
    return {"rng": self._trainer.rng.bit_generator.state,
            "best": None if best is None else best.tolist(),
            "evaluations": self.problem.account.evaluations}

  def _load_state(self, state: Dict[str, Any]) -> None:
    self._trainer.rng.bit_generator.state = state["rng"]
    if state["best"] is not None:
      self.problem.evaluate_ops(np.asarray(state["best"], dtype=np.int32))
    self.problem.account.evaluations = state["evaluations"]

  def _export(self) -> None:
    problem = self.problem
    if problem.account.best_placement is not None:
      Placement.from_indices(
          problem.graph, problem.cluster, problem.account.best_placement, method=self.config.policy,
          seed=self.config.seed, evaluations=problem.account.evaluations,
          step_time_us=float(problem.simulator.simulate(problem.account.best_placement).step_time_us),
      ).save(os.path.join(self.root_dir, "placement.json"))


train = functools.partial(runs.train, OneGraphTrainer)


def trainable(name: str) -> Trainable:
  """The record for `scripts/train.py`."""
  return Trainable(name, default_config(name), train)
