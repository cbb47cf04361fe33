"""Trains GDP on many graphs: samples placements of some graphs, updates with PPO, takes the next.

arXiv 1910.01578, section 3.3: one network for all graphs, whose placer is gated by features of the
graph. A root directory holds what `training.runs` says, and

  train/          checkpoints: weights, optimizer, baselines, random states
  train/events*   TensorBoard: rewards, step time over one device's, loss, gradient norm, held out
  weights/        the network's weights, for --warm_start and --policy_weights

A run that is killed and resumed ends with the same weights as one that was not, to the bit on one
machine.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow
from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError, check_at_least
from placeto_tf.policies.gdp.episodes import (
  Played,
  SampleCollector,
  SampleSpec,
  make_environments,
)
from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import node_inputs, node_problem
from placeto_tf.policies.gdp.policy import GdpPolicy, load_network, save_weights
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import check_specs, load_with_replicas
from placeto_tf.search import PLACERS
from placeto_tf.training import collecting_run, runs
from placeto_tf.training.collecting import Maker
from placeto_tf.training.collecting_run import CollectingRun
from placeto_tf.training.one_shot import OneShotConfig, OneShotTrainer
from placeto_tf.training.problems import expand_clusters, make_problem
from placeto_tf.training.run_config import CollectedRunConfig
from placeto_tf.training.trainable import Trainable

import tensorflow as tf  # isort: skip

# The paper's reward and algorithm; it does not state all sizes and rates.
PPO = OneShotConfig(
    algorithm="ppo", batch_size=16, epochs=4, baseline="batch", scale_advantages=True,
    learning_rate=1e-3, final_learning_rate=3e-4, entropy=0.01, final_entropy=0.0)
# Training on other graphs ended with little exploration; fine-tuning goes on from there.
FINE_TUNING = dataclasses.replace(PPO, entropy=0.005)


@dataclasses.dataclass(frozen=True)
class GdpTrainingConfig(CollectedRunConfig):
  """The configuration of a run: policy, graphs, duration.

  Attributes:
    graphs, held_out, watch_cluster, iterations, checkpoint_every, watch_every, seed, lag: see
      `RunConfig` and `CollectedRunConfig`.
    clusters: as `Cluster.parse` takes them, or "random[3]", which draws three for each graph.
    graphs_per_update: an update follows the mean gradient of so many graphs, which may be sampled
      and simulated at once. The batches of graphs stay the same; their order is drawn again after
      all of them had their turn.
    network, training: see there.
  """

  graphs_per_update: int = 2
  network: GdpConfig = GdpConfig()
  training: OneShotConfig = PPO

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_least(1, self, "graphs_per_update", error_type=PlacetoError)


def make_problems(
    graphs: Sequence[str], clusters: Sequence[str], seed: int = 0) -> List[PlacementProblem]:
  """Every graph on its clusters, ungrouped."""
  check_specs(graphs)
  problems = []
  for index, name in enumerate(graphs):
    graph = load_with_replicas(name)
    problems += [
        node_problem(make_problem(graph, Cluster.parse(cluster), num_threads=1))
        for cluster in expand_clusters(clusters, seed, index)]
  return problems


class GdpTrainer(CollectingRun):
  """One run of GDP's training in its root directory.

  Attributes:
    network: what is trained.
  """

  policy = "gdp"
  rate = "placements_a_second"
  config: GdpTrainingConfig

  def __init__(
      self, config: GdpTrainingConfig, root_dir: str, *,
      problems: Optional[Sequence[PlacementProblem]] = None,
      held_out: Sequence[PlacementProblem] = (), warm_start: Optional[str] = None):
    """Resumes the run in the directory, or begins one.

    Args:
      config: of the run.
      root_dir: its directory.
      problems, held_out: instead of those that `config` names, made by `node_problem`.
      warm_start: directory of weights that a new run begins with.

    Raises:
      PlacetoError: the directory holds a run of another configuration, a graph or cluster is
        wrong, or the warm start is of another network.
    """
    super().__init__(config, root_dir)
    if problems is None:
      problems = make_problems(config.graphs, config.clusters, config.seed)
      held_out = make_problems(config.held_out, (config.watch_cluster,))
    self._problems, self._num_training = list(problems) + list(held_out), len(problems)
    self.network = GdpNetwork(config.network, config.seed)
    if warm_start is not None:
      self._begin_with(load_network(warm_start), warm_start)
    self._policy = GdpPolicy(
        [node_inputs(each, config.network.max_devices) for each in self._problems], self.network)
    self._trainer = OneShotTrainer(
        self._policy, make_environments(self._problems[:self._num_training], config.training),
        config.training, config.seed)
    self._single_us = [
        float(each.evaluate_ops(PLACERS["single"](each)).objective_us[0])
        for each in self._problems]
    size = config.graphs_per_update
    self._batches = [
        tuple(range(first, min(first + size, self._num_training)))
        for first in range(0, self._num_training, size)]
    self._resume(trainer=self._trainer.checkpoint)

  def watch(self) -> Dict[str, float]:
    """Step time over one device's of the likeliest devices, geometric mean over held-out graphs."""
    logs = []
    for graph in self._held_out:
      found = self._problems[graph].evaluate(self._policy.greedy(graph)).objective_us[0]
      logs.append(np.log(found / self._single_us[graph]))
    return {"held_out_over_single": float(np.exp(np.mean(logs)))}

  @property
  def _held_out(self) -> range:
    return range(self._num_training, len(self._problems))

  def _turn(self, iteration: int) -> Tuple[int, ...]:
    """The graphs of an iteration: a function of the seed, so that resuming needs no state."""
    turn, place = divmod(iteration, len(self._batches))
    order = np.random.default_rng([self.config.seed, turn]).permutation(len(self._batches))
    return self._batches[order[place]]

  def _begin(self) -> Dict[str, float]:
    # The untrained network's figures.
    return self._record(self.watch()) if self._held_out else {}

  @property
  def _maker(self) -> Maker:
    return functools.partial(SampleCollector, self.config.network, self.config.training)

  def _to_collect_on(self, num_threads: Optional[int] = None) -> List[PlacementProblem]:
    del num_threads  # they are on one anyway
    return [each.portable(with_shapes=True) for each in self._problems[:self._num_training]]

  @property
  def _handed_out(self) -> List[np.ndarray]:
    return [variable.numpy() for variable in self.network.variables]

  @property
  def _at_once(self) -> int:
    return min(self.config.graphs_per_update, self._num_training)

  def _draw(self, iteration: int) -> List[SampleSpec]:
    return [SampleSpec(graph, int(self._trainer.rng.integers(2**31)))
            for graph in self._turn(iteration - 1)]

  def _name_of(self, spec: SampleSpec) -> str:
    return self._name(spec.graph)

  def _join(self, experiences: List[Played]) -> List[Played]:
    return experiences

  def _steps_of(self, experience: Played) -> int:
    return len(experience.rewards)

  def _learn(self, collected: List[Played]) -> Optional[np.ndarray]:
    """[graphs, B] rewards; None where a gradient was not a number."""
    skipped, rewards = self._trainer.skipped, [each.rewards for each in collected]
    self._trainer.learn(
        [each.graph for each in collected], [each.sample for each in collected], rewards,
        self.iteration / self.config.iterations)
    return np.stack(rewards) if self._trainer.skipped == skipped else None

  def _finite(self, learned: np.ndarray) -> bool:
    return bool(np.isfinite(learned).all()) and runs.all_finite(self.network.variables)

  def _figures(self, collected: List[Played], learned: np.ndarray) -> Dict[str, float]:
    # The batch's mean step time over one device's, whether placements fit or not.
    over_single = {
        each.graph: float(each.step_time_us.mean()) / self._single_us[each.graph]
        for each in collected}
    return {
        **self._trainer.losses, "reward": float(learned.mean()),
        "over_single": float(np.exp(np.mean(np.log(list(over_single.values()))))),
        **{f"OverSingle/{self._name(graph)}": value for graph, value in over_single.items()}}

  def _steps(self, collected: List[Played]) -> int:
    return sum(map(self._steps_of, collected))

  def _name(self, graph: int) -> str:
    """The spec of a graph and the number of its problem; a graph has one per cluster."""
    return f"{self._graph_of(graph, self._num_training)}_{graph}"

  def _begin_with(self, given: GdpNetwork, directory: str) -> None:
    if given.config != self.config.network:
      raise PlacetoError(
          f"the weights in {directory} are of a network of {given.config}, expected "
          f"{self.config.network}; give weights of such a network, or none")
    for variable, value in zip(self.network.variables, given.variables):
      variable.assign(value)

  def _variables(self) -> List[tf.Variable]:
    return list(self.network.variables)

  def _state(self) -> Dict[str, Any]:
    return {"rng": self._trainer.rng.bit_generator.state}

  def _load_state(self, state: Dict[str, Any]) -> None:
    self._trainer.rng.bit_generator.state = state["rng"]

  def _export(self) -> None:
    save_weights(
        self.network, os.path.join(self.root_dir, "weights"), iteration=self.iteration,
        training=self.config.to_json())


train = functools.partial(collecting_run.train, GdpTrainer)


def trainable() -> Trainable:
  """The record for `scripts/train.py`."""
  return Trainable("gdp", GdpTrainingConfig(()), train, on_ray=True)
