"""Episodes of the published process on graphs of a family, side by side.

Dimensions: P graphs side by side, B episodes of them (B / P of each), G groups, D devices, T steps
of the longest episode.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.network import PublishedNetwork
from placeto_tf.training import driving
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.family_environment import FamilyEnvironment
from placeto_tf.training.placement_environment import PlacementEnvironment
from placeto_tf.training.problems import StartedProblem

# What these need is checked by the rooms above.
import tensorflow as tf  # isort: skip
from tf_agents.specs import tensor_spec  # isort: skip
from tf_agents.trajectories import trajectory  # isort: skip


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodesSpec:
  """All that episodes depend on besides weights.

  Attributes:
    graphs: [P] numbers of the graphs.
    seed: of all samples.
    best: [P] of [G] int32, the best placement of each graph so far.
  """

  graphs: Tuple[int, ...]
  seed: int
  best: Tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Episodes:
  """Episodes as they were played, and their results.

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


def make_environments(
    problems: Sequence[StartedProblem], grouped: Sequence[GroupedGraph], config: PublishedConfig, *,
    num_training: int, side_by_side: int, seed: int) -> List[PlacementEnvironment]:
  """Makes an environment for each graph.

  Args:
    problems, grouped: of the graphs, in one order.
    config: whose rules the environments follow.
    num_training: graphs behind the first so many are held out.
    side_by_side: graphs among which the episodes are divided.
    seed: of the orders and starts; each graph has its own.

  Returns:
    An environment for each graph.
  """
  made = []
  for i, (each, graph) in enumerate(zip(problems, grouped)):
    rules = dataclasses.replace(
        config.environment, num_episodes=config.environment.num_episodes // side_by_side)
    if i >= num_training and rules.start == "best":
      rules = dataclasses.replace(rules, start="given")  # the same in every watch
    # Seeds differ by graph, so that graphs do not share their orders.
    made.append(PlacementEnvironment(
        each.problem.allowed, SimulatedCost(each.problem, graph), each.starts[0],
        order=graph.order, config=rules, seed=seed + i))
  return made


def play(
    environment: FamilyEnvironment, logits: driving.Logits, rng: Optional[np.random.Generator]
) -> Episodes:
  """Plays episodes of the graphs that the environment has chosen.

  Args:
    environment: in any state.
    logits: of the policy, observation -> [B, 1, D].
    rng: of the actions; None takes the likeliest devices.

  Returns:
    The episodes.
  """
  best = np.full(len(environment.graphs), np.inf)  # [P]

  def objectives() -> np.ndarray:  # [P, B / P]
    """Returns [P, B / P] objectives of the present placements over the start's."""
    return environment.objectives.reshape(len(environment.graphs), -1)

  steps = driving.play(
      environment, driving.drawing(logits, rng),
      # An observer of every step keeps the best objective, in place.
      [lambda _: np.minimum(best, objectives().min(axis=1), out=best)])
  return Episodes(
      # Last: geometric mean over a graph's episodes.
      environment.graphs, steps, np.exp(np.log(objectives()).mean(axis=1)), best,
      tuple(each.best_placement for each in environment.chosen),
      tuple(each.best_objective_us for each in environment.chosen))


class EpisodesCollector:
  """A network of its own, and environments of all graphs."""

  def __init__(
      self, config: PublishedConfig, problems: Sequence[StartedProblem], *, num_training: int,
      side_by_side: int, at_once: int, max_groups: int, seed: int):
    """Makes a network and an environment.

    Args:
      config, seed, max_groups: of the learner.
      problems, num_training: as for `make_environments`.
      side_by_side: graphs of an update.
      at_once: graphs of a spec, P.
    """
    grouped = [GroupedGraph.of(each.problem) for each in problems]
    self._environment = FamilyEnvironment(
        make_environments(
            problems, grouped, config, num_training=num_training, side_by_side=side_by_side,
            seed=seed),
        max_groups=max_groups, side_by_side=at_once)
    self._network = PublishedNetwork(
        tensor_spec.from_spec(self._environment.observation_spec()),
        tensor_spec.from_spec(self._environment.action_spec()), grouped, max_groups=max_groups,
        config=config.network, seed=seed)
    self._network.create_variables()
    self._logits = driving.acting(self._network)

  def __call__(self, weights: Sequence[np.ndarray], spec: EpisodesSpec) -> Episodes:
    """Plays the episodes of a spec.

    Args:
      weights: of the learner's network.
      spec: of the episodes.

    Returns:
      The episodes.
    """
    # The collector's own copy of the weights, perhaps in another process.
    for variable, value in zip(self._network.variables, weights):
      variable.assign(value)
    self._environment.begin(spec.graphs, spec.seed, spec.best)
    return play(self._environment, self._logits, np.random.default_rng(spec.seed))


def joined(parts: Sequence[Episodes]) -> Episodes:
  """Concatenates episodes; those that end earlier stay where they are until the last one ends.

  Args:
    parts: of different graphs.

  Returns:
    All episodes side by side, [sum of B, longest T, ...].
  """
  longest = max(each.steps.reward.shape[1] for each in parts)

  def join(*values: np.ndarray, mode: Any = "edge") -> np.ndarray:
    """Pads arrays to the longest episode and concatenates them.

    Args:
      *values: [B, T, ...] each.
      mode: of `np.pad`: "edge" repeats the last step, "constant" appends zeros.

    Returns:
      [sum of B, longest T, ...].
    """
    return np.concatenate([
        np.pad(value, [(0, 0), (0, longest - value.shape[1])] + [(0, 0)] * (value.ndim - 2), mode)
        for value in values])

  # Padding repeats the last step, but earns nothing: rewards are padded by zeros.
  steps = tf.nest.map_structure(join, *(each.steps for each in parts))
  steps = steps._replace(reward=join(*(each.steps.reward for each in parts), mode="constant"))
  return Episodes(
      sum((each.graphs for each in parts), ()), steps,
      np.concatenate([each.last for each in parts]), np.concatenate([each.best for each in parts]),
      sum((each.best_placements for each in parts), ()), sum((each.best_us for each in parts), ()))
