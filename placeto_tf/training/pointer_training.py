"""Trains the device pointer: collects an episode of every row, learns from it, saves, repeats.

A root directory holds:

  config.json              the configuration; a run with another one is refused
  train/                   checkpoints: weights, optimizer, step, random states, pools of placements
  train/events*            TensorBoard: reward, loss, entropy, share of moves, gains held out
  policies/policy/         SavedModel of the greedy policy with dense inputs
  weights/                 the same policy for compiled inference: weights.npz, weights.json
  done.json                written at the end of the run: the reason, and its last figures

A run that is killed and resumed ends with the same weights as one that was not, to the bit on one
machine: everything random comes from generators that are saved with them.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
from tf_agents.utils import common

from placeto_tf.encoding.pair_features import NAMES, TIMING
from placeto_tf.environments.moves_environment import (
  MovesConfig,
  MovesEnvironment,
  MovesProblem,
)
from placeto_tf.errors import PlacetoError, check_at_least
from placeto_tf.policies.device_pointer import agent as agent_lib
from placeto_tf.policies.device_pointer.scorer import PREFERENCE, ScorerWeights
from placeto_tf.policies.device_pointer.sweeps import SweepConfig, Sweeper
from placeto_tf.policies.saved_policy import save_policy
from placeto_tf.problem.budget import Budget
from placeto_tf.simulation.schedule import SimulationResult
from placeto_tf.simulation.timeline import timeline_figure
from placeto_tf.training import pointer_problems, runs
from placeto_tf.training.run_config import RunConfig


@dataclasses.dataclass(frozen=True)
class PointerTrainingConfig(RunConfig):
  """The configuration of a run: policy, graphs, duration.

  Attributes:
    graphs, held_out, watch_cluster, seed: see `RunConfig`.
    clusters: as `Cluster.parse` takes them, or "random[3]", which draws three for each graph.
    max_groups: a number of groups is drawn from these for each problem.
    annealed: evaluations of annealing that make one more start each, see `with_starts`.
    max_devices: room in observations, hosts included.
    iterations: updates, each from `environment.rows` episodes of `environment.steps` steps.
    checkpoint_every, watch_every: iterations.
    learning_rate, epochs, entropy, discount: see tf-agents' PPO; with discount 0 the value of a
      move is its immediate gain.
    without: names of features that the policy does not see, for ablations; "timing" means
      all features that come from a simulation.
    target: the ratio held out (see `PointerTrainer.watch`) at which training ends; None: none.
    patience: training ends after so many evaluations in a row on held-out graphs without a better
      ratio; 0: never.
    environment: the rules.
  """

  clusters: Tuple[str, ...] = ("k80:4", "random[2]")
  max_groups: Tuple[int, ...] = (128,)
  annealed: Tuple[int, ...] = ()
  max_devices: int = 9
  iterations: int = 2000
  checkpoint_every: int = 100
  watch_every: int = 200
  learning_rate: float = 1e-3
  epochs: int = 4
  entropy: float = 0.01
  discount: float = 0.0
  without: Tuple[str, ...] = ()
  target: Optional[float] = None
  patience: int = 0
  environment: MovesConfig = MovesConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_least(1, self, "epochs", "max_devices", error_type=PlacetoError)
    names = [name for each in self.without for name in (TIMING if each == "timing" else (each,))]
    object.__setattr__(self, "without", tuple(names))
    if not 0 <= self.discount <= 1:
      raise PlacetoError(f"discount is {self.discount}; expected a number from 0 to 1")
    unknown = sorted(set(self.without) - set(NAMES))
    if unknown:
      raise PlacetoError(
          f"without has {', '.join(unknown)}; the policy's features are {', '.join(NAMES)}")
    if self.patience < 0:
      raise PlacetoError(f"patience is {self.patience}; expected 0 or more")
    if not self.held_out and (self.patience or self.target is not None):
      raise PlacetoError("target and patience watch held-out graphs; give held_out too")

  def to_json(self) -> Dict[str, Any]:
    """The content of config.json, with the features that a policy may see."""
    return {**super().to_json(), "features": list(NAMES)}


@dataclasses.dataclass
class _Stop:
  """Whether training should end before all iterations are done.

  Attributes:
    best: the best ratio on held-out graphs so far.
    idle: how many evaluations in a row were no better.
    reason: why training ends, or None.
  """

  best: Optional[float] = None
  idle: int = 0
  reason: Optional[str] = None

  def look(self, ratio: float, config: PointerTrainingConfig) -> None:
    """Adds a ratio."""
    self.idle = 0 if self.best is None or ratio < self.best else self.idle + 1
    self.best = ratio if self.best is None else min(self.best, ratio)
    if config.target is not None and ratio <= config.target:
      self.reason = f"the target was met: {ratio:.4f} held out"
    elif config.patience and self.idle >= config.patience:
      self.reason = f"nothing better than {self.best:.4f} held out in {self.idle} looks"


class PointerTrainer(runs.TrainingRun):
  """One run of the device pointer's training in its root directory."""

  def __init__(
      self, config: PointerTrainingConfig, root_dir: str, *,
      problems: Optional[Sequence[MovesProblem]] = None,
      held_out: Sequence[MovesProblem] = (), warm_start: Optional[str] = None):
    """Resumes the run in the directory, or begins one.

    Args:
      config: of the run.
      root_dir: its directory.
      problems, held_out: instead of those that `config` names.
      warm_start: directory of scorer weights that a new run begins with.

    Raises:
      PlacetoError: the directory holds a run of another configuration, a graph or cluster is
        wrong, or the warm start is of another network.
    """
    super().__init__(config, root_dir)
    if problems is None:
      problems = pointer_problems.make_problems(
          config.graphs, config.clusters, max_groups=config.max_groups, annealed=config.annealed,
          seed=config.seed)
      held_out = pointer_problems.make_problems(config.held_out, (config.watch_cluster,))
    self._held_out_problems = list(held_out)
    self._environment = MovesEnvironment(
        problems, config.max_devices, config=config.environment, seed=config.seed)
    self._rng = np.random.default_rng(config.seed)
    self.agent = agent_lib.make_agent(
        config.max_devices, learning_rate=config.learning_rate, epochs=config.epochs,
        entropy=config.entropy, discount=config.discount, without=config.without,
        seed=config.seed)
    if warm_start is not None:
      self.agent.actor_net.set_weights_for_scoring(ScorerWeights.load(warm_start, PREFERENCE))
    self._train = common.function(self.agent.train)
    self._stop = _Stop()
    self._resume(
        agent=self.agent, actor=self.agent.actor_net,
        value=self.agent.collect_policy._value_network, optimizer=self.agent._optimizer)

  @property
  def _held_out(self) -> Sequence[MovesProblem]:
    return self._held_out_problems

  @property
  def weights(self) -> ScorerWeights:
    """The present weights of the policy."""
    return self.agent.actor_net.weights_for_scoring()

  def watch(self) -> Dict[str, float]:
    """Objective after a greedy round over the start's, geometric mean over held-out problems.

    The placement of the first of them goes to TensorBoard as a picture.
    """
    logs = []
    for number, each in enumerate(self._held_out):
      start = each.problem.grouping.expand(each.starts[0])
      sweeper = Sweeper(each.problem, start, self.weights, config=SweepConfig(rounds=1))
      start_us = sweeper.objective_us
      sweeper.run(Budget())
      logs.append(np.log(sweeper.objective_us / start_us))
      if number == 0:
        simulated = each.problem.simulator.simulate(sweeper.placement)
        with self._writer.as_default(step=self.iteration):
          tf.summary.image("Placement/held_out", _picture(simulated))
    return {"held_out_ratio": float(np.exp(np.mean(logs)))}

  def _collect(self) -> Tuple[Any, float]:
    """Experience and its mean reward."""
    return agent_lib.collect(self._environment, self.weights, self._rng)

  def _learn(self, collected: Tuple[Any, float]) -> Any:
    return self._train(collected[0])

  def _finite(self, learned: Any) -> bool:
    return bool(np.isfinite(learned.loss.numpy())) and runs.all_finite(
        self.agent.actor_net.variables)

  def _figures(self, collected: Tuple[Any, float], learned: Any) -> Dict[str, float]:
    experience, reward = collected
    moved, improved = self._environment.moved, self._environment.improved
    self._environment.moved = self._environment.improved = 0
    return dict(
        reward=reward, loss=float(learned.loss), entropy=-float(
            learned.extra.entropy_regularization_loss) / max(self.config.entropy, 1e-12),
        kl=agent_lib.kl_divergence(experience, self.weights),
        gradient_norm=float(self.agent._optimizer.gradient_norm),
        moved=moved / self._steps(collected), improved=improved / max(1, moved))

  def _steps(self, collected: Any) -> int:
    del collected
    return self.config.environment.rows * self.config.environment.steps

  def _watched(self, figures: Mapping[str, float]) -> None:
    self._stop.look(figures["held_out_ratio"], self.config)

  def _reason_to_stop(self) -> Optional[str]:
    return self._stop.reason

  def _finish(self) -> None:
    save_policy(self.agent.policy, os.path.join(self.root_dir, "policies", "policy"))

  def _variables(self) -> List[tf.Variable]:
    return list(self.agent.actor_net.variables) + list(
        self.agent.collect_policy._value_network.variables) + runs.optimizer_variables(
            self.agent._optimizer)

  def _state(self) -> Dict[str, Any]:
    return {"stop": dataclasses.asdict(self._stop), "rng": self._rng.bit_generator.state,
            "environment": self._environment.state_dict()}

  def _load_state(self, state: Dict[str, Any]) -> None:
    self._stop = _Stop(**state["stop"])
    self._rng.bit_generator.state = state["rng"]
    self._environment.load_state_dict(state["environment"])


train = functools.partial(runs.train, PointerTrainer)


def _picture(simulated: SimulationResult) -> tf.Tensor:
  """[1, height, width, 4] uint8, a timeline of each device in a step."""
  content = io.BytesIO()
  timeline_figure(simulated).savefig(content, format="png")
  return tf.image.decode_png(content.getvalue(), channels=4)[None]
