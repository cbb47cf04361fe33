"""Trains Placeto to predict the gains of moves, from the moves of its own episodes.

An iteration has one or a few episodes, each on another problem: a driver of tf-agents plays a
`MoveProcess`. The gain of each move goes into a replay buffer, and tf-agents' bandit agent learns
to predict it by regression: see `agent`. A root directory holds the files that `runs` lists, and

  train/                   checkpoints, the buffer included, and TensorBoard's events
  weights/                 the network for compiled inference: weights.npz, weights.json
  policies/policy/         SavedModel, when training is done: serialized GraphTensors -> scores
  policies/greedy_policy/  SavedModel of tf-agents' policy, by `PolicySaver`

A run that is killed resumes from the last checkpoint; on one machine, its final weights are the
same.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow
from placeto_tf.environments import problems as problems_lib
from placeto_tf.environments.move_environment import MoveEnvironment
from placeto_tf.environments.move_process import MoveProcess
from placeto_tf.environments.problems import StartedProblem
from placeto_tf.environments.schedule import Schedule
from placeto_tf.environments.timing import SESSION, SIMULATED
from placeto_tf.errors import PlacetoError, check_above_zero, check_at_least, check_one_of
from placeto_tf.policies.placeto import agent as agent_lib
from placeto_tf.policies.placeto import scorer
from placeto_tf.policies.placeto.scorer import ScorerWeights
from placeto_tf.policies.saved_policy import save_policy, save_server
from placeto_tf.training import trainer
from placeto_tf.training.learner import Learner, Spec
from placeto_tf.training.trainable import RunConfig, Trainable

import tensorflow as tf  # isort: skip
from tf_agents.trajectories import trajectory  # isort: skip

_OTHER_START = 0.35  # share of episodes that do not begin at the best start


@dataclasses.dataclass(frozen=True)
class PlacetoTrainingConfig(RunConfig):
  """The configuration of a run: graphs and clusters, process, network, duration.

  Attributes:
    graphs, held_out, watch_cluster, iterations, seed: see `RunConfig`.
    clusters: as `Cluster.parse` takes them, or "random[3]", which samples three for each graph.
    max_groups: numbers of groups, from which one is sampled for each problem.
    schedule: of an episode, whose moves are simulated side by side.
    timing: step times of the rewards, "simulated" or "session"; workers: of sessions, see
      `environments.timing`.
    moves: number of moves that are simulated from each placement: half of them those with the best
      scores, the others sampled uniformly.
    temperature: scale of the noise that is added to scores before the best are taken.
    arms: the most option edges that are scored at once in training.
    width: width of the network's layers.
    learning_rate: Adam's learning rate at first; it falls to 0 along a cosine.
    steps: Adam's steps per iteration; batch: moves per step.
    capacity: moves in the buffer.
    episodes: episodes per iteration, all of which may be played at once. With N times as many, N
      times as many steps keep the ratio of learning to playing.
  """

  clusters: Tuple[str, ...] = ("k80:4", "random[1]")
  max_groups: Tuple[int, ...] = (128,)
  schedule: Schedule = Schedule(
      rounds=(560, 560, 560), levels=(0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0), vary=0.5)
  timing: str = SIMULATED
  workers: Tuple[str, ...] = ()
  moves: int = 20
  temperature: float = 0.05
  arms: int = 1024
  width: int = 64
  learning_rate: float = 3e-3
  steps: int = 25
  batch: int = 1024
  capacity: int = 1 << 18
  episodes: int = 1

  def __post_init__(self) -> None:
    super().__post_init__()
    check_one_of((SIMULATED, SESSION), self, "timing", error_type=PlacetoError)
    check_at_least(1, self, "arms", "width", "steps", "batch", "capacity", "episodes",
                   error_type=PlacetoError)
    check_at_least(2, self, "moves", error_type=PlacetoError)
    check_at_least(0, self, "temperature", error_type=PlacetoError)
    check_above_zero(self, "learning_rate", error_type=PlacetoError)


def make_environment(
    config: PlacetoTrainingConfig, problems: Sequence[StartedProblem]) -> MoveEnvironment:
  """Makes the environment of a run's configuration."""
  return MoveEnvironment(problems, config.schedule, arms=config.arms, moves=config.moves)


class EpisodeCollector:
  """Plays episodes on its problems."""

  def __init__(self, config: PlacetoTrainingConfig, problems: Sequence[StartedProblem]):
    self._config, self._environment = config, make_environment(config, problems)

  def __call__(self, weights: ScorerWeights, spec: Spec) -> trajectory.Trajectory:
    """Plays an episode.

    Args:
      weights: weights of the scorer.
      spec: of the episode; `start` is the number of the problem's start.

    Returns:
      The episode's steps, [S, ...].
    """
    rng = np.random.default_rng(spec.seed)
    self._environment.begin(spec.graph, spec.start, rng)
    return agent_lib.play(
        self._environment, agent_lib.exploring(weights, self._config.temperature, rng))


class PlacetoTraining(Learner):
  """The agent, and the moves of past iterations, from which it learns.

  Attributes:
    agent: of tf-agents.
  """

  config: PlacetoTrainingConfig

  def __init__(
      self, config: PlacetoTrainingConfig, root_dir: str, *, warm_start: Optional[str] = None,
      **given: Any):
    """Makes agent and buffer; see the base class.

    Raises:
      PlacetoError: the warm start is of another width; and the errors of the base class.
    """
    super().__init__(config, root_dir, **given)
    # Initial weights: samples, or the weights of the warm start.
    first = (ScorerWeights.untrained(config.seed, config.width) if warm_start is None else
             ScorerWeights.load(warm_start))
    if len(first.bias_1) != config.width:
      raise PlacetoError(
          f"the weights in {warm_start} have width {len(first.bias_1)}, expected {config.width}; "
          "set width to theirs")
    # The rate is set in `learn`, before every iteration.
    self._optimizer = tf.keras.optimizers.Adam(config.learning_rate)
    self.agent = agent_lib.make_agent(
        make_environment(config, self.problems), first, self._optimizer)
    self._network = self.agent.policy._reward_network
    # Slots must exist before a checkpoint is restored.
    self._optimizer.build(self._network.trainable_variables)
    # Part of checkpoints, so that a resumed run sees the same moves.
    self._experience = agent_lib.Experience(self.agent, config.capacity)
    self._train = tf.function(self.agent.train)
    self.at_once = config.episodes
    self.tracked = {"optimizer": self._optimizer, "network": self._network,
                    "buffer": self._experience.buffer}
    self.collector = functools.partial(EpisodeCollector, config)

  def make_problems(
      self, graphs: Sequence[str], clusters: Sequence[str]) -> Iterator[StartedProblem]:
    """Makes every graph on its clusters; see the base class.

    Args:
      graphs: names, as `load_graph` takes them.
      clusters: as `Cluster.parse` takes them, or "random[3]".

    Yields:
      The problems with their starts.
    """
    config = self.config
    return problems_lib.make_problems(
        graphs, clusters, max_groups=config.max_groups, seed=config.seed, lists=True,
        timing=config.timing, workers=config.workers)

  @property
  def weights(self) -> ScorerWeights:
    """Returns the network's present weights."""
    return self._network.scorer

  def tried(self, number: int) -> Dict[str, float]:
    """Runs the short rounds of the search on a held-out problem with the present weights.

    Args:
      number: of the problem.

    Returns:
      The ratio of the objective after these rounds to the start's.
    """
    problem, starts = self.problems[number].problem, self.problems[number].starts
    # The search as users run it, but only its rounds, without turns.
    process = MoveProcess(problem, problem.grouping.expand(starts[0]), Schedule())
    start_us = process.objective_us
    process.run(self.weights.of_process)
    return {"ratio": process.objective_us / start_us}

  def portable(self, num_threads: Optional[int]) -> List[StartedProblem]:
    """See the base class."""
    if num_threads and self.config.timing != SIMULATED:
      raise PlacetoError("real steps are timed in this process alone; train without ray")
    return [each.portable(num_threads) for each in self.problems[:self.num_training]]

  def specs(self, iteration: int) -> List[Spec]:
    """See the base class."""
    del iteration
    rng, specs = self.rng, []
    for _ in range(self.config.episodes):
      problem = int(rng.integers(self.num_training))
      starts = len(self.problems[problem].starts)
      # Start 0 is the best one; the others show worse placements, with more to gain.
      start = int(rng.integers(starts)) if rng.random() < _OTHER_START else 0
      specs.append(Spec(problem, int(rng.integers(2**31)), start))
    return specs

  def learn(
      self, experiences: List[trajectory.Trajectory], iteration: int) -> Dict[str, float]:
    """Puts the moves into the buffer, and learns from random batches of the whole buffer.

    Args:
      experiences: one for each episode.
      iteration: from 1 on.

    Returns:
      The mean loss, the share of these moves that improved a placement, and their number.
    """
    config, steps = self.config, agent_lib.concatenated(experiences)
    self._experience.add(steps, self.rng)
    # Cosine from the full rate at iteration 1 to nearly 0 at the last.
    self._optimizer.learning_rate.assign(config.learning_rate * 0.5 * (
        1 + math.cos(math.pi * (iteration - 1) / config.iterations)))
    # One copy of the buffer serves all steps of this iteration.
    everything = self._experience.all()
    losses = [
        float(self._train(agent_lib.sampled(everything, config.batch, self.rng)).loss)
        for _ in range(config.steps if everything.reward.size else 0)]
    return {"loss": float(np.mean(losses)) if losses else 0.0,
            "improved": float((steps.reward > 0).mean()), "steps": len(steps.reward)}

  def export(self, directory: str, **notes: Any) -> None:
    """Writes weights/."""
    self.weights.save(directory, **notes)

  def finish(self) -> None:
    """Writes policies/."""
    folder = os.path.join(self.root_dir, "policies")
    save_server(self._network, os.path.join(folder, "policy"))
    save_policy(agent_lib.greedy_policy(self.weights, self.config.arms),
                os.path.join(folder, "greedy_policy"))


def trainable() -> Trainable:
  """Returns the record for `scripts/train.py`."""
  from placeto_tf.policies.placeto.published import training as published

  return Trainable(
      "placeto", PlacetoTrainingConfig(()), functools.partial(trainer.train, PlacetoTraining),
      pretrained=lambda: scorer.SHIPPED, presets={"paper": published.trainable()})
