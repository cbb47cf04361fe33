"""Plays episodes of the published process, many episodes of one graph side by side.

Dimensions: B episodes, G groups, D devices, T steps.
"""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments import driving
from placeto_tf.environments.problems import StartedProblem
from placeto_tf.environments.visit_environment import VisitEnvironment
from placeto_tf.policies import weight_files
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.network import PublishedNetwork
from placeto_tf.training.learner import Spec

from tf_agents.trajectories import trajectory  # isort: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Episodes:
  """Played episodes and their results.

  Attributes:
    graph: number of the graph.
    steps: [B, T, ...] arrays.
    last: geometric mean over episodes of the last step time divided by the start's.
    best: the best step time of all episodes, divided by the start's.
    found: the best placement of the graph so far, [G] int32, and its objective in us.
  """

  graph: int
  steps: trajectory.Trajectory
  last: float
  best: float
  found: Tuple[np.ndarray, float]


def make_environments(
    problems: Sequence[StartedProblem], grouped: Sequence[GroupedGraph], config: PublishedConfig, *,
    num_training: int, seed: int) -> List[VisitEnvironment]:
  """Makes an environment for each graph.

  Args:
    problems, grouped: of the graphs, in the same order.
    config: has the rules of the environments.
    num_training: number of training graphs, which come first; the others are held out.
    seed: of the orders and starts; each graph derives its own seed.
  """
  made = []
  # The episodes of an update are divided among several graphs, or all if there are fewer.
  episodes = config.environment.num_episodes
  rules = dataclasses.replace(
      config.environment, num_episodes=episodes // min(episodes, num_training))
  for i, (each, graph) in enumerate(zip(problems, grouped)):
    if i >= num_training and rules.start == "best":
      rules = dataclasses.replace(rules, start="given")  # every watch has the same starts
    # Seeds differ by graph, so that graphs do not share their orders.
    made.append(VisitEnvironment(
        each.problem, graph, each.starts[0], config=rules, seed=seed + i, graph=i,
        num_graphs=len(problems), max_groups=max(each.num_groups for each in grouped)))
  return made


def play(
    environment: VisitEnvironment, logits: driving.Logits, rng: Optional[np.random.Generator],
    graph: int = 0) -> Episodes:
  """Plays episodes of a graph.

  Args:
    environment: of the graph, in any state.
    logits: of the policy, observation -> [B, 1, D].
    rng: of the actions; None takes the likeliest devices.
    graph: number of the graph.
  """
  seen: List[np.ndarray] = []  # [B] objectives after each step
  steps = driving.play(
      environment, driving.drawing(logits, rng), [lambda _: seen.append(environment.objective_us)])
  over_start = np.stack(seen) / environment.scale_us  # [T, B]
  return Episodes(
      graph, steps, float(np.exp(np.log(over_start[-1]).mean())), float(over_start.min()),
      environment.best)


class EpisodesCollector:
  """Plays episodes, with its own network and an environment for each graph."""

  def __init__(
      self, config: PublishedConfig, problems: Sequence[StartedProblem], *, num_training: int,
      seed: int):
    """Makes a network and environments."""
    grouped = [GroupedGraph.of(each.problem) for each in problems]
    self._environments = make_environments(
        problems, grouped, config, num_training=num_training, seed=seed)
    self._network = PublishedNetwork.made(self._environments[0], grouped, config.network, seed)
    self._logits = driving.acting(self._network)

  def __call__(self, weights: Sequence[np.ndarray], spec: Spec) -> Episodes:
    """Plays the episodes of a spec.

    Args:
      weights: of the learner's network.
      spec: of the episodes; `start` is the best placement of the graph so far, [G] int32.
    """
    # The collector's own copy of the weights, perhaps in another process.
    weight_files.assign(self._network.variables, weights)
    environment = self._environments[spec.graph]
    environment.begin([spec.seed, spec.graph], spec.start)
    return play(environment, self._logits, np.random.default_rng(spec.seed), spec.graph)
