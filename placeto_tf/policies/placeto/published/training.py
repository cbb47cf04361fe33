"""Trains the published process on a family of graphs: several graphs per update, all in turn.

A root directory holds the files that `training.runs` lists, and

  train/                   checkpoints: weights, optimizer, step, baselines, random states, best
                           placements
  train/events*            TensorBoard: returns, loss, entropy, step time relative to the start's,
                           the same for held-out graphs, speed
  policies/greedy_policy/  SavedModel of tf-agents, of the likeliest devices on these graphs, when
                           training is done
  weights/                 the network's weights, for `--warm_start` and `--policy_weights`

On one machine, a run that is killed and resumed ends with the same weights, to the bit, as a run
that is not interrupted, because checkpoints have the states of all random generators.

Dimensions: P graphs of an update, G groups.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments import problems as problems_lib
from placeto_tf.environments.problems import StartedProblem
from placeto_tf.errors import PlacetoError, check_at_least
from placeto_tf.policies.placeto.published import collecting
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.learner import PublishedLearner
from placeto_tf.policies.placeto.published.weights import PublishedWeights
from placeto_tf.policies.saved_policy import save_policy
from placeto_tf.training import trainer
from placeto_tf.training.learner import Learner, Spec
from placeto_tf.training.trainable import RunConfig, Trainable


@dataclasses.dataclass(frozen=True)
class PublishedTrainingConfig(RunConfig):
  """The configuration of a run: policy, graphs, duration.

  Attributes:
    graphs, held_out, watch_cluster, seed: see `RunConfig`.
    clusters: every graph is placed on every cluster; all have equally many devices.
    max_groups: the most groups of a graph.
    iterations: number of updates. Each has `placeto.environment.num_episodes` episodes, divided
      among as many graphs, or all graphs if there are fewer. The given start is the best of single
      device, expert and METIS; step times are divided by the start's.
    checkpoint_every, watch_every: numbers of iterations.
    placeto: configuration of the published process.
  """

  max_groups: int = 48
  iterations: int = 4000
  checkpoint_every: int = 100
  watch_every: int = 200
  placeto: PublishedConfig = dataclasses.field(default_factory=PublishedConfig)

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_least(1, self, "max_groups", error_type=PlacetoError)


class PublishedTraining(Learner):
  """Placeto's policy, which learns from all graphs in turn.

  Attributes:
    learner: the policy, its agent and its optimizer.
  """

  config: PublishedTrainingConfig
  problems: List[StartedProblem]

  def __init__(
      self, config: PublishedTrainingConfig, root_dir: str, *, warm_start: Optional[str] = None,
      **given: Any):
    """See the base class.

    Raises:
      PlacetoError: the warm start is of another network; and the errors of the base class.
    """
    super().__init__(config, root_dir, **given)
    # Held-out graphs, too, because one network has the tables of all graphs.
    graphs = [GroupedGraph.of(each.problem) for each in self.problems]
    self._environments = collecting.make_environments(
        self.problems, graphs, config.placeto, num_training=self.num_training, seed=config.seed)
    # Arrays of the network.
    start = None if warm_start is None else PublishedWeights.load(warm_start).arrays
    self.learner = PublishedLearner(
        self._environments[0], graphs, config.placeto, config.seed, weights=start)
    # For each training graph: the best placement so far, and its objective.
    self._best = [each.best for each in self._environments[:self.num_training]]
    self.at_once = min(config.placeto.environment.num_episodes, self.num_training)
    self.tracked = {"network": self.learner.network, "optimizer": self.learner.optimizer}
    self.collector = functools.partial(
        collecting.EpisodesCollector, config.placeto, num_training=self.num_training,
        seed=config.seed)

  def make_problems(
      self, graphs: Sequence[str], clusters: Sequence[str]) -> Iterator[StartedProblem]:
    """Makes every graph on every cluster, with its given start; see the base class.

    Args:
      graphs: names, as `load_graph` takes them.
      clusters: as `Cluster.parse` takes them.

    Yields:
      The problems, graph after graph.
    """
    return problems_lib.make_problems(
        graphs, clusters, max_groups=(self.config.max_groups,), seed=self.config.seed,
        num_threads=1)

  def tried(self, number: int) -> Dict[str, float]:
    """Plays episodes on a held-out graph from its given start; learns nothing.

    Args:
      number: of the graph.

    Returns:
      Step times divided by the start's: of the last and the best placements of sampled episodes,
      and of the last placement of a greedy episode.
    """
    # Every watch has the same seeds, so that watches differ by weights alone.
    rng = np.random.default_rng([self.config.seed, number])
    sampled, greedy = (
        collecting.play(self._environments[number], self.learner.logits, samples)
        for samples in (rng, None))
    return {"last": sampled.last, "best": sampled.best, "greedy": greedy.last}

  def portable(self, num_threads: Optional[int]) -> List[StartedProblem]:
    """See the base class."""
    # Held-out graphs, too, because the network has the tables of all graphs.
    return [each.portable(num_threads) for each in self.problems]

  def specs(self, iteration: int) -> List[Spec]:
    """Returns one spec of episodes for each graph of an iteration; see the base class."""
    # Each graph has a seed of its own and its best placement so far.
    return [Spec(graph, int(self.rng.integers(2**31)), self._best[graph][0])
            for graph in self.turn(iteration)]

  def learn(self, experiences: List[collecting.Episodes], iteration: int) -> Dict[str, float]:
    """Makes one update from the episodes of some graphs; see the base class.

    Args:
      experiences: one for each graph.
      iteration: from 1 on.

    Returns:
      Loss, entropy, mean return, geometric means of step times divided by the start's, and the
      number of decisions.
    """
    for each in experiences:
      self._best[each.graph] = each.found
    losses = self.learner.update(
        [each.steps for each in experiences], [each.graph for each in experiences],
        (iteration - 1) / self.config.iterations)
    returns = [float(each.steps.reward.sum(axis=1).mean()) for each in experiences]
    last, best = np.exp(
        np.log([[each.last, each.best] for each in experiences]).mean(axis=0)).tolist()
    return {"last": last, "best": best, **losses, "returns": float(np.mean(returns)),
            "steps": sum(each.steps.reward.size for each in experiences)}

  def state(self) -> Dict[str, Any]:
    """See the base class."""
    returns = self.learner.returns.astype(object)
    returns[np.isnan(self.learner.returns)] = None  # JSON has no NaN
    return {**super().state(), "best": [[placement.tolist(), us] for placement, us in self._best],
            "returns": returns.tolist()}

  def load_state(self, state: Dict[str, Any]) -> None:
    """See the base class."""
    super().load_state(state)
    self._best = [(np.array(placement, np.int32), us) for placement, us in state["best"]]
    self.learner.returns[:] = np.array(state["returns"], np.float64)

  def export(self, directory: str, **notes: Any) -> None:
    """Writes weights/."""
    PublishedWeights(
        tuple(self.weights), self.config.placeto, self._environments[0].num_devices
    ).save(directory, **notes)

  def finish(self) -> None:
    """Writes policies/."""
    save_policy(
        self.learner.agent.policy, os.path.join(self.root_dir, "policies", "greedy_policy"))


def trainable() -> Trainable:
  """Returns the record for `scripts/train.py --policy=placeto --preset=paper`."""
  return Trainable(
      "placeto", PublishedTrainingConfig(()), functools.partial(trainer.train, PublishedTraining))
