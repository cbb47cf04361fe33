"""Trains a policy that is made for one graph, the RNN-based or the hierarchical one.

The same updates as those of the methods `rnn` and `hierarchical` (`rivals`), for a given number of
them. A root directory holds what `training.runs` says, and

  train/           checkpoints: weights, optimizer, baseline, random state, best placement
  train/events*    TensorBoard: step time now and best, reward, loss, gradient norm
  placement.json   the best placement so far

A run that is killed goes on from the last checkpoint and ends with the same weights, to the bit on
one machine, as one that was not.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import Any, Dict, List, Optional

import numpy as np

from placeto_tf.encoding.legacy_keras import check_legacy_keras
from placeto_tf.errors import PlacetoError

check_legacy_keras()

import tensorflow as tf  # noqa: E402  the check must come first

from placeto_tf.clusters import Cluster  # noqa: E402
from placeto_tf.environments.cost import SimulatedCost  # noqa: E402
from placeto_tf.environments.one_shot_environment import OneShotEnvironment  # noqa: E402
from placeto_tf.graphs import load_graph  # noqa: E402
from placeto_tf.placements import Placement  # noqa: E402
from placeto_tf.problem.placement_problem import PlacementProblem  # noqa: E402
from placeto_tf.training import one_graph_policies, runs  # noqa: E402
from placeto_tf.training.one_shot import OneShotConfig, OneShotTrainer  # noqa: E402
from placeto_tf.training.pointer_problems import make_problem  # noqa: E402

# What is searched with, and how the policy is made.
POLICIES = {"rnn": (one_graph_policies.RnnSearch, one_graph_policies.rnn_policy),
            "hierarchical": (one_graph_policies.HierarchicalSearch,
                             one_graph_policies.hierarchical_policy)}


@dataclasses.dataclass(frozen=True)
class OneGraphConfig:
  """What is trained, on what, for how long.

  Attributes:
    policy: of `POLICIES`.
    graph, cluster: as `load_graph` and `Cluster.parse` take them.
    iterations: updates, of `training.batch_size` placements each.
    checkpoint_every: iterations.
    seed: of everything random.
    training: by default that of the method.
  """

  policy: str
  graph: str
  cluster: str = "k80:4"
  iterations: int = 1000
  checkpoint_every: int = 50
  seed: int = 0
  training: Optional[OneShotConfig] = None

  def __post_init__(self):
    if self.policy not in POLICIES:
      raise PlacetoError(
          f"policy {self.policy!r} is not known; expected one of {', '.join(POLICIES)}")
    for name in ("iterations", "checkpoint_every"):
      if getattr(self, name) < 1:
        raise PlacetoError(f"{name} is {getattr(self, name)}; expected at least 1")

  def to_json(self) -> Dict[str, Any]:
    """As config.json holds it."""
    return json.loads(json.dumps(dataclasses.asdict(self)))


class OneGraphTrainer(runs.TrainingRun):
  """One run in its root directory.

  Attributes:
    problem: knows the best placement so far.
    policy: what is trained.
  """

  rate = "updates_a_second"

  def __init__(
      self, config: OneGraphConfig, root_dir: str, *, problem: Optional[PlacementProblem] = None,
      options: Any = None, warm_start: Optional[str] = None):
    """Takes up the run that the directory holds, or begins one.

    Args:
      config: what is trained.
      root_dir: its directory.
      problem: instead of the one that `config` names.
      options: the policy's own, see `rivals`.
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
    problem = problem or make_problem(load_graph(config.graph), Cluster.parse(config.cluster))
    weights, draws = one_graph_policies.seeds(config.seed)
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
             "StepTime/best_us": float(self.problem.best_objective_us)}
    if environment.fits.any():
      found["StepTime/current_us"] = float(environment.step_time_us[environment.fits].mean())
    return {**found, "best_ms": found["StepTime/best_us"] / 1e3}

  def _variables(self) -> List[tf.Variable]:
    return list(self.policy.trainable_variables)

  def _state(self) -> Dict[str, Any]:
    best = self.problem.best_placement
    return {"rng": self._trainer.rng.bit_generator.state,
            "best": None if best is None else best.tolist()}

  def _load_state(self, state: Dict[str, Any]) -> None:
    self._trainer.rng.bit_generator.state = state["rng"]
    if state["best"] is not None:
      self.problem.evaluate_ops(np.array([state["best"]], dtype=np.int32))

  def _export(self) -> None:
    problem = self.problem
    if problem.best_placement is not None:
      Placement.from_indices(
          problem.graph, problem.cluster, problem.best_placement, method=self.config.policy,
          seed=self.config.seed, evaluations=problem.evaluations,
          step_time_us=float(problem.simulator.simulate(problem.best_placement).step_time_us),
      ).save(os.path.join(self.root_dir, "placement.json"))


train = functools.partial(runs.train, OneGraphTrainer)
