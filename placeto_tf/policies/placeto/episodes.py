"""Episodes of Placeto on graphs of a family, side by side, and what is learned from of them.

Legend: P graphs side by side, B episodes of them (B / P of each), G groups, K groups placed in one
step, D devices, T steps of the longest episode.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
from tf_agents.specs import tensor_spec

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.learner import acting
from placeto_tf.policies.placeto.network import PlacetoNetwork
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training import observation as observation_lib
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.family_environment import FamilyEnvironment
from placeto_tf.training.placement_environment import PlacementEnvironment

Logits = Callable[[Dict[str, np.ndarray]], np.ndarray]


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
    observations: name -> [T, B, ...].
    actions: [T, B, K] int32.
    rewards: [T, B] float32.
    values: [T, B, D] float32, see `PlacementEnvironment.values`; None unless they are learned from.
    last, best: [P] step times over the start's: the last one's geometric mean, and the best.
    best_placements: [P] of [G] int32, the best ever of each graph; best_us: [P] their objectives.
  """

  graphs: Tuple[int, ...]
  observations: Dict[str, np.ndarray]
  actions: np.ndarray
  rewards: np.ndarray
  values: Optional[np.ndarray]
  last: np.ndarray
  best: np.ndarray
  best_placements: Tuple[np.ndarray, ...]
  best_us: Tuple[float, ...]


def grouped_graphs(problems: Sequence[FamilyProblem]) -> List[GroupedGraph]:
  """What a policy knows of each."""
  return [
      GroupedGraph.build(each.graph, each.costs, each.cluster, each.grouping, each.allowed)
      for each in (one.problem for one in problems)]


def make_environments(
    problems: Sequence[FamilyProblem], grouped: Sequence[GroupedGraph], config: PlacetoConfig, *,
    num_training: int, side_by_side: int, seed: int) -> List[PlacementEnvironment]:
  """An environment for each graph; those behind the first `num_training` are held out."""
  made = []
  for i, (each, graph) in enumerate(zip(problems, grouped)):
    rules = dataclasses.replace(
        config.environment, num_episodes=config.environment.num_episodes // side_by_side,
        all_values=config.values == "all" and i < num_training)
    if i >= num_training and rules.start == "best":
      rules = dataclasses.replace(rules, start="given")  # the same in every watch
    made.append(PlacementEnvironment(
        each.problem.allowed, SimulatedCost(each.problem, graph), each.start, order=graph.order,
        config=rules, seed=seed + i))
  return made


def play(
    environment: FamilyEnvironment, logits: Logits, rng: np.random.Generator, *,
    greedy: bool = False, values: bool = False) -> Episodes:
  """Episodes of the graphs that the environment has chosen.

  Args:
    environment: in any state.
    logits: of the policy, observation -> [B, K, D].
    rng: of the actions.
    greedy: whether the likeliest devices are taken.
    values: whether those of all devices are learned from.
  """
  time_step, steps = environment.reset(), []
  best = np.full(len(environment.graphs), np.inf)
  while not time_step.is_last().all():
    observation = time_step.observation
    scores = logits(observation)
    if not greedy:
      scores = scores + rng.gumbel(size=scores.shape)
    action = scores.argmax(-1).astype(np.int32)
    time_step = environment.step(action)
    objectives = environment.objectives.reshape(len(best), -1)
    best = np.minimum(best, objectives.min(axis=1))
    steps.append((observation, action, time_step.reward, environment.values if values else None))
  observations, actions, rewards, found = zip(*steps)
  return Episodes(
      environment.graphs,
      {name: np.stack([each[name] for each in observations]) for name in observations[0]},
      np.stack(actions), np.stack(rewards), np.stack(found) if values else None,
      np.exp(np.log(objectives).mean(axis=1)), best,
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
    self._values = config.values == "all"
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
    self._logits = acting(self._network)

  def __call__(self, weights: Sequence[np.ndarray], spec: EpisodesSpec) -> Episodes:
    """Args: weights: of the learner's network."""
    for variable, value in zip(self._network.variables, weights):
      variable.assign(value)
    self._environment.begin(spec.graphs, spec.seed, spec.best)
    return play(
        self._environment, self._logits, np.random.default_rng(spec.seed), values=self._values)


def joined(parts: Sequence[Episodes]) -> Episodes:
  """All episodes side by side; those that end earlier stay where they are until the last one ends.
  """
  longest = max(len(each.rewards) for each in parts)
  filled = [_filled(each, longest) for each in parts]
  values = [each.values for each in filled if each.values is not None]
  return Episodes(
      sum((each.graphs for each in parts), ()),
      {name: np.concatenate([each.observations[name] for each in filled], axis=1)
       for name in parts[0].observations},
      np.concatenate([each.actions for each in filled], axis=1),
      np.concatenate([each.rewards for each in filled], axis=1),
      np.concatenate(values, axis=1) if values else None,
      np.concatenate([each.last for each in parts]), np.concatenate([each.best for each in parts]),
      sum((each.best_placements for each in parts), ()), sum((each.best_us for each in parts), ()))


def _filled(part: Episodes, length: int) -> Episodes:
  """The part with more steps at its end, which move nothing and earn nothing."""
  missing = length - len(part.rewards)
  if not missing:
    return part

  def last(value: np.ndarray) -> np.ndarray:
    return np.concatenate([value, np.repeat(value[-1:], missing, axis=0)])

  def nothing(value: np.ndarray) -> np.ndarray:
    return np.concatenate([value, np.zeros((missing, *value.shape[1:]), value.dtype)])

  stay = np.take_along_axis(
      part.observations[observation_lib.PLACEMENT], part.observations[observation_lib.CURRENT],
      axis=2)[-1:]
  return dataclasses.replace(
      part, observations={name: last(value) for name, value in part.observations.items()},
      actions=np.concatenate([part.actions, np.repeat(stay, missing, axis=0)]),
      rewards=nothing(part.rewards), values=None if part.values is None else nothing(part.values))
