"""Trains GDP on many graphs: samples placements of some graphs, updates with PPO, then goes on.

arXiv 1910.01578, section 3.3: one network for all graphs; features of the graph gate its placer. A
root directory holds the files that `training.runs` lists, and

  train/          checkpoints: weights, optimizer, random state
  train/events*   TensorBoard: rewards, step time relative to one device, loss, held-out graphs
  weights/        the network's weights, for --warm_start and --policy_weights

On one machine, a run that is killed and resumed ends with the same weights, to the bit, as a run
that is not interrupted.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments.problems import named_problems
from placeto_tf.errors import PlacetoError, check_at_least
from placeto_tf.policies.baselines import gdp
from placeto_tf.policies.baselines.gdp_inputs import node_inputs, node_problem
from placeto_tf.policies.baselines.gdp_network import GdpConfig, GdpNetwork
from placeto_tf.policies.baselines.one_shot import Played
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search import PLACERS
from placeto_tf.training import trainer
from placeto_tf.training.learner import Learner, Spec
from placeto_tf.training.trainable import RunConfig, Trainable


@dataclasses.dataclass(frozen=True)
class GdpTrainingConfig(RunConfig):
  """The configuration of a run: policy, graphs, duration.

  Attributes:
    graphs, held_out, watch_cluster, iterations, checkpoint_every, watch_every, seed: see
      `RunConfig`.
    clusters: as `Cluster.parse` takes them, or "random[3]", which samples three for each graph.
    graphs_per_update: number of graphs of an update, which follows their mean gradient; they may be
      sampled and simulated at once.
    network, training: sizes of the network, and settings of PPO.
  """

  graphs_per_update: int = 2
  network: GdpConfig = GdpConfig()
  training: gdp.PpoConfig = gdp.PpoConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_least(1, self, "graphs_per_update", error_type=PlacetoError)


class SampleCollector:
  """Samples placements of the training problems, with its own network."""

  def __init__(
      self, network: GdpConfig, training: gdp.PpoConfig, problems: Sequence[PlacementProblem]):
    """Makes the network."""
    self._network = GdpNetwork(network)
    self._policy = gdp.GdpPolicy(
        [node_inputs(GroupedGraph.of(each), network.max_devices) for each in problems],
        self._network)
    self._problems, self._batch_size = problems, training.batch_size

  def __call__(self, weights: Sequence[np.ndarray], spec: Spec) -> Played:
    """Samples a batch of placements of one graph."""
    # The learner's weights arrive with every spec: collectors may be in other processes.
    self._network.set_weights(weights)
    return self._policy.play(
        self._problems[spec.graph], np.random.default_rng(spec.seed), self._batch_size, spec.graph)


class GdpTraining(Learner):
  """GDP's network, which learns from all graphs in turn.

  Attributes:
    network: the network that is trained.
  """

  rate = "placements_a_second"
  config: GdpTrainingConfig
  problems: List[PlacementProblem]

  def __init__(
      self, config: GdpTrainingConfig, root_dir: str, *, warm_start: Optional[str] = None,
      **given: Any):
    """Makes the network, and loads initial weights if there are any. See the base class.

    Raises:
      PlacetoError: the weights in `warm_start` are of another network, or the base class raises.
    """
    super().__init__(config, root_dir, **given)
    self.network = GdpNetwork(config.network, config.seed)
    if warm_start is not None:
      begun = gdp.load_network(warm_start)
      if begun.config != config.network:
        raise PlacetoError(
            f"the weights in {warm_start} are of a network of {begun.config}, expected "
            f"{config.network}; give weights of such a network, or none")
      self.network.set_weights(begun.get_weights())
    self._policy = gdp.GdpPolicy(
        [node_inputs(GroupedGraph.of(each), config.network.max_devices)
         for each in self.problems], self.network)
    self.learner = gdp.GdpLearner(
        self._policy, config.training,
        # Held-out graphs may be larger, because nothing is learned from them.
        num_steps=max(each.num_groups for each in self.problems[:self.num_training]))
    # Step times of a graph are divided by its objective on the best single device.
    self._single_us = [
        float(each.evaluate_ops(PLACERS["single"](each)).objective_us[0])
        for each in self.problems]
    self.at_once = min(config.graphs_per_update, self.num_training)
    self.tracked = {"network": self.network, "optimizer": self.learner.optimizer}
    self.collector = functools.partial(SampleCollector, config.network, config.training)

  def make_problems(
      self, graphs: Sequence[str], clusters: Sequence[str]) -> Iterator[PlacementProblem]:
    """Makes every graph on its clusters, ungrouped.

    Args:
      graphs, clusters: as `named_problems` takes them.

    Yields:
      The problems, graph after graph.
    """
    return (node_problem(problem) for _, problem in named_problems(
        graphs, clusters, seed=self.config.seed, num_threads=1))

  def portable(self, num_threads: Optional[int]) -> List[PlacementProblem]:
    """See the base class; the simulators have one thread each anyway."""
    return [each.portable(with_shapes=True) for each in self.problems[:self.num_training]]

  def learn(self, experiences: List[Played], iteration: int) -> Dict[str, float]:
    """Makes one update from the samples of some graphs; see the base class.

    Args:
      experiences: one for each graph.
      iteration: from 1 on.

    Returns:
      The loss, the mean reward, step times divided by those of the best single device, and the
      number of placements.
    """
    losses = self.learner.learn(
        [each.steps for each in experiences], iteration / self.config.iterations)
    # Mean step times divided by one device's; placements that do not fit count, too.
    ratios = [each.step_time_us.mean() / self._single_us[each.steps.observation[0, 0]]
              for each in experiences]
    return {
        **losses, "reward": float(np.mean([each.steps.reward.mean() for each in experiences])),
        "over_single": float(np.exp(np.mean(np.log(ratios)))),
        "steps": sum(len(each.step_time_us) for each in experiences)}

  def tried(self, number: int) -> Dict[str, float]:
    """Evaluates the likeliest devices on a held-out graph.

    Args:
      number: of the graph.

    Returns:
      The step time (with the memory penalty) divided by one device's.
    """
    found = self.problems[number].evaluate(self._policy.greedy(number)).objective_us[0]
    return {"over_single": found / self._single_us[number]}

  def export(self, directory: str, **notes: Any) -> None:
    """Writes weights/."""
    gdp.save_weights(self.network, directory, **notes)

def trainable() -> Trainable:
  """Returns the record for `scripts/train.py`."""
  return Trainable("gdp", GdpTrainingConfig(()), functools.partial(trainer.train, GdpTraining))
