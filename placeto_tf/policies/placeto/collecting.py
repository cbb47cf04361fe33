"""Episodes of Placeto on graphs of a family, side by side, and what is learned from of them.

Legend: P graphs side by side, B episodes of them (B / P of each), G groups, K groups placed in one
step, D devices, T steps of the longest episode.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.network import PlacetoNetwork
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training import driving
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.family_environment import FamilyEnvironment
from placeto_tf.training.placement_environment import PlacementEnvironment

# What these need is checked by the rooms above.
import tensorflow as tf  # isort: skip
from tf_agents.metrics import py_metric  # isort: skip
from tf_agents.specs import tensor_spec  # isort: skip
from tf_agents.trajectories import trajectory  # isort: skip


@dataclasses.dataclass(frozen=True, eq=False)
class FamilyProblem:
  """Attributes: name of the graph, its family, the problem, the given start [G]."""

  name: str
  family: str
  problem: PlacementProblem
  start: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodesSpec:
  """What episodes depend on besides weights.

  Attributes:
    graphs: [P] numbers of the graphs.
    seed: of all draws.
    best: [P] of [G] int32, the best placement of each graph so far.
  """

  graphs: Tuple[int, ...]
  seed: int
  best: Tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Episodes:
  """What was seen and done, and how it went.

  Attributes:
    graphs: [P] numbers of the graphs.
    steps: [B, T, ...] arrays.
    last, best: [P] step times over the start's: the last one's geometric mean, and the best.
    best_placements: [P] of [G] int32, the best ever of each graph; best_us: [P] their objectives.
  """

  graphs: Tuple[int, ...]
  steps: trajectory.Trajectory
  last: np.ndarray
  best: np.ndarray
  best_placements: Tuple[np.ndarray, ...]
  best_us: Tuple[float, ...]


def grouped_graphs(problems: Sequence[FamilyProblem]) -> List[GroupedGraph]:
  """What a policy knows of each."""
  return [GroupedGraph.of(each.problem) for each in problems]


def make_environments(
    problems: Sequence[FamilyProblem], grouped: Sequence[GroupedGraph], config: PlacetoConfig, *,
    num_training: int, side_by_side: int, seed: int) -> List[PlacementEnvironment]:
  """An environment for each graph; those behind the first `num_training` are held out."""
  made = []
  for i, (each, graph) in enumerate(zip(problems, grouped)):
    rules = dataclasses.replace(
        config.environment, num_episodes=config.environment.num_episodes // side_by_side,
        all_gains=config.credit == "gains" and i < num_training)
    if i >= num_training and rules.start == "best":
      rules = dataclasses.replace(rules, start="given")  # the same in every watch
    made.append(PlacementEnvironment(
        each.problem.allowed, SimulatedCost(each.problem, graph), each.start, order=graph.order,
        config=rules, seed=seed + i))
  return made


class BestStepTime(py_metric.PyStepMetric):
  """[P] the best step time of each graph in the episodes, over its start's."""

  def __init__(self, environment: FamilyEnvironment):
    self._environment = environment
    super().__init__("BestStepTime")
    self.reset()

  def reset(self) -> None:
    """Forgets all."""
    self._best = np.full(len(self._environment.graphs), np.inf)

  def call(self, step: trajectory.Trajectory) -> None:
    """Takes the placements of now into account."""
    objectives = self._environment.objectives.reshape(len(self._environment.graphs), -1)
    self._best = np.minimum(self._best, objectives.min(axis=1))

  def result(self) -> np.ndarray:
    """See the class."""
    return self._best


def play(
    environment: FamilyEnvironment, logits: driving.Logits, rng: Optional[np.random.Generator]
) -> Episodes:
  """Episodes of the graphs that the environment has chosen.

  Args:
    environment: in any state.
    logits: of the policy, observation -> [B, K, D].
    rng: of the actions; None takes the likeliest devices.
  """
  best = BestStepTime(environment)
  steps = driving.play(environment, driving.drawing(logits, rng), [best])
  objectives = environment.objectives.reshape(len(environment.graphs), -1)
  return Episodes(
      environment.graphs, steps, np.exp(np.log(objectives).mean(axis=1)), best.result(),
      tuple(each.best_placement for each in environment.chosen),
      tuple(each.best_objective_us for each in environment.chosen))


class EpisodesCollector:
  """A network of its own, and environments of all graphs."""

  def __init__(
      self, config: PlacetoConfig, problems: Sequence[FamilyProblem], *, num_training: int,
      side_by_side: int, at_once: int, max_groups: int, seed: int):
    """Makes them.

    Args:
      config, seed, max_groups: of the learner.
      problems, num_training: as for `make_environments`.
      side_by_side: graphs of an update.
      at_once: graphs of a spec, P.
    """
    grouped = grouped_graphs(problems)
    self._environment = FamilyEnvironment(
        make_environments(
            problems, grouped, config, num_training=num_training, side_by_side=side_by_side,
            seed=seed),
        max_groups=max_groups, side_by_side=at_once)
    self._network = PlacetoNetwork(
        tensor_spec.from_spec(self._environment.observation_spec()),
        tensor_spec.from_spec(self._environment.action_spec()), grouped, max_groups=max_groups,
        config=config.network, seed=seed)
    self._network.create_variables()
    self._logits = driving.acting(self._network)

  def __call__(self, weights: Sequence[np.ndarray], spec: EpisodesSpec) -> Episodes:
    """Args: weights: of the learner's network."""
    for variable, value in zip(self._network.variables, weights):
      variable.assign(value)
    self._environment.begin(spec.graphs, spec.seed, spec.best)
    return play(self._environment, self._logits, np.random.default_rng(spec.seed))


def joined(parts: Sequence[Episodes]) -> Episodes:
  """All episodes side by side; those that end earlier stay where they are until the last one ends.
  """
  longest = max(each.steps.reward.shape[1] for each in parts)

  def join(*values: np.ndarray, mode: Any = "edge") -> np.ndarray:
    return np.concatenate([
        np.pad(value, [(0, 0), (0, longest - value.shape[1])] + [(0, 0)] * (value.ndim - 2), mode)
        for value in values])

  steps = tf.nest.map_structure(join, *(each.steps for each in parts))
  steps = steps._replace(reward=join(*(each.steps.reward for each in parts), mode="constant"))
  return Episodes(
      sum((each.graphs for each in parts), ()), steps,
      np.concatenate([each.last for each in parts]), np.concatenate([each.best for each in parts]),
      sum((each.best_placements for each in parts), ()), sum((each.best_us for each in parts), ()))
