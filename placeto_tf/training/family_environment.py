"""Several graphs as one environment: episodes of the chosen graphs, side by side.

Observations are padded to the largest graph and name their graph, so that one network serves all;
see `environments.observation`. Episodes take their steps together. The episode of a graph with
fewer groups ends earlier: from then on its row does not change and earns 0 until all episodes have
ended.

Legend: C graphs, P of them chosen, R episodes of each, B = P R rows, ordered by graph; G groups.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from placeto_tf.errors import PlacetoError
from placeto_tf.training import observation as observation_lib
from placeto_tf.training.placement_environment import PlacementEnvironment


class FamilyEnvironment(py_environment.PyEnvironment):
  """A batched tf-agents environment made of those of single graphs.

  Attributes:
    environments: C, one per graph, with equal numbers of episodes, groups per step and devices.
  """

  def __init__(
      self, environments: Sequence[PlacementEnvironment], *, max_groups: Optional[int] = None,
      side_by_side: int = 1, go_on: Callable[[], bool] = lambda: True):
    """Chooses the first graphs.

    Args:
      environments: of single graphs.
      max_groups: room in observations; by default what the largest graph needs.
      side_by_side: P.
      go_on: asked after each step; where it says no, episodes end with that step.

    Raises:
      PlacetoError: a graph has more groups than there is room for, or devices, groups per step or
        episodes differ from graph to graph.
    """
    super().__init__(handle_auto_reset=True)
    self.environments: List[PlacementEnvironment] = list(environments)
    sizes = [each.num_groups for each in self.environments]
    self._room = max(sizes) if max_groups is None else max_groups
    if max(sizes) > self._room:
      raise PlacetoError(
          f"graph {int(np.argmax(sizes))} has {max(sizes)} groups, there is room for {self._room}; "
          "raise max_groups or group more coarsely")
    action = self.environments[0].action_spec()
    for i, each in enumerate(self.environments):
      if each.action_spec() != action or each.batch_size != self.environments[0].batch_size:
        raise PlacetoError(
            f"graph {i} has {each.action_spec().maximum + 1} devices, "
            f"{each.action_spec().shape[0]} groups per step and {each.batch_size} episodes; "
            f"graph 0 has {action.maximum + 1}, {action.shape[0]} and "
            f"{self.environments[0].batch_size}; they must be alike")
    self._action_spec = action
    self._observation_spec = observation_lib.observation_spec(
        self._room, int(action.maximum) + 1, action.shape[0], len(self.environments),
        gains=any(each.config.all_gains for each in self.environments))
    self._side_by_side, self._t, self._go_on = side_by_side, 0, go_on
    self.choose([i % len(self.environments) for i in range(side_by_side)])

  @property
  def batched(self) -> bool:
    """Episodes come in batches."""
    return True

  @property
  def batch_size(self) -> int:
    """B."""
    return self._side_by_side * self.environments[0].batch_size

  @property
  def graphs(self) -> Tuple[int, ...]:
    """[P] numbers of the graphs that the episodes are of."""
    return self._graphs

  @property
  def chosen(self) -> List[PlacementEnvironment]:
    """[P] environments of those graphs."""
    return [self.environments[graph] for graph in self._graphs]

  @property
  def num_steps(self) -> int:
    """Steps of the longest episode."""
    return max(each.num_steps for each in self.chosen)

  @property
  def objectives(self) -> np.ndarray:
    """[B] float64: of the placements now, over those of the given starts."""
    return np.concatenate([each.objective_us / each.scale_us for each in self.chosen])

  def choose(self, graphs: Sequence[int]) -> None:
    """Chooses these P graphs, all different, for the next episodes; ends the present ones.

    Raises:
      PlacetoError: there are more or fewer than P of them, or one twice.
    """
    count = len(self.environments)
    if len(graphs) != self._side_by_side or (
        len(set(graphs)) != len(graphs) and self._side_by_side <= count):
      raise PlacetoError(
          f"graphs {list(graphs)} were chosen; expected {self._side_by_side} different ones")
    self._graphs = tuple(int(graph) for graph in graphs)
    self._current_time_step = None  # the next step begins an episode

  def observation_spec(self):
    """See `environments.observation`; of one episode."""
    return self._observation_spec

  def action_spec(self):
    """[K] devices; of one episode."""
    return self._action_spec

  def begin(self, graphs: Sequence[int], seed: int, best: Sequence[np.ndarray]) -> None:
    """Chooses graphs, and sets all that their episodes depend on.

    Args:
      graphs: [P] see `choose`.
      seed: of all later draws.
      best: [P] of [G] int32, the best placement of each so far.

    Raises:
      PlacetoError: see `choose`.
    """
    self.choose(graphs)
    for graph, each, placement in zip(graphs, self.chosen, best):
      each.begin([seed, graph], placement)

  def _reset(self) -> ts.TimeStep:
    self._t = 0
    self._last = [each.reset() for each in self.chosen]
    return ts.restart(self._observe(), batch_size=self.batch_size)

  def _step(self, action) -> ts.TimeStep:
    parts = np.split(np.asarray(action), self._side_by_side)
    rewards = []
    for i, (each, part) in enumerate(zip(self.chosen, parts)):
      if self._t < each.num_steps:
        self._last[i] = each.step(part)
        rewards.append(self._last[i].reward)
      else:
        rewards.append(np.zeros(each.batch_size, dtype=np.float32))
    self._t += 1
    reward = np.concatenate(rewards)
    if self._t == self.num_steps or not self._go_on():
      return ts.termination(self._observe(), reward, outer_dims=(self.batch_size,))
    ones = np.ones(self.batch_size, dtype=np.float32)
    return ts.transition(self._observe(), reward, ones, outer_dims=(self.batch_size,))

  def _observe(self) -> Dict[str, np.ndarray]:
    rows = self.environments[0].batch_size
    observation = {}
    for name, spec in self._observation_spec.items():
      if name == observation_lib.GRAPH:
        observation[name] = np.repeat(
            np.array(self._graphs, dtype=np.int32), rows)[:, None]
        continue
      stacked = np.zeros((self.batch_size,) + spec.shape, dtype=spec.dtype)
      for i, time_step in enumerate(self._last):
        if name not in time_step.observation:  # gains, of a graph that is held out
          continue
        value = time_step.observation[name]
        stacked[i * rows:(i + 1) * rows, :value.shape[1]] = value
      observation[name] = stacked
    return observation
