"""Several graphs as one environment: episodes of the chosen graphs, side by side.

Observations are padded to the largest graph and name their graph, so that one network serves all;
see `training.observation`. Episodes take their steps together. The episode of a graph with
fewer groups ends earlier: from then on its row does not change and earns 0 until all episodes have
ended.

Dimensions: C graphs, P of them chosen, R episodes of each, B = P R rows, ordered by graph; G
groups.
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
    environments: C, one per graph, with equal numbers of episodes and devices.
  """

  def __init__(
      self, environments: Sequence[PlacementEnvironment], *, max_groups: Optional[int] = None,
      side_by_side: int = 1, go_on: Callable[[], bool] = lambda: True):
    """Chooses the first graphs.

    Args:
      environments: of single graphs.
      max_groups: room in observations; by default that of the largest graph.
      side_by_side: P.
      go_on: asked after each step; where it says no, episodes end with that step.

    Raises:
      PlacetoError: a graph has more groups than there is room for, or devices or episodes differ
        from graph to graph.
    """
    super().__init__(handle_auto_reset=True)
    self.environments: List[PlacementEnvironment] = list(environments)
    sizes = [each.num_groups for each in self.environments]
    room = max_groups or max(sizes)
    if max(sizes) > room:
      raise PlacetoError(
          f"graph {int(np.argmax(sizes))} has {max(sizes)} groups, there is room for {room}; "
          "raise max_groups or group more coarsely")
    shapes = [(each.num_devices, each.config.num_episodes) for each in self.environments]
    for i, shape in enumerate(shapes):
      if shape != shapes[0]:
        raise PlacetoError(
            "graph {} has {} devices and {} episodes; graph 0 has {} and {}; they must be alike"
            .format(i, *shape, *shapes[0]))
    devices, self._rows = shapes[0]
    self._action_spec = observation_lib.action_spec(devices)
    self._observation_spec = observation_lib.observation_spec(room, devices, len(sizes))
    self._side_by_side, self._t, self._go_on = side_by_side, 0, go_on
    self.choose([i % len(self.environments) for i in range(side_by_side)])

  @property
  def batched(self) -> bool:
    """Returns that episodes come in batches."""
    return True

  @property
  def batch_size(self) -> int:
    """Returns B."""
    return self._side_by_side * self._rows

  @property
  def graphs(self) -> Tuple[int, ...]:
    """Returns [P] numbers of the graphs that the episodes are of."""
    return self._graphs

  @property
  def chosen(self) -> List[PlacementEnvironment]:
    """Returns [P] environments of those graphs."""
    return [self.environments[graph] for graph in self._graphs]

  @property
  def num_steps(self) -> int:
    """Returns the number of steps of the longest episode."""
    return max(each.num_groups for each in self.chosen)

  @property
  def objectives(self) -> np.ndarray:
    """Returns [B] float64: of the placements now, over those of the given starts."""
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
    """Returns the spec of one episode's observation, see `training.observation`."""
    return self._observation_spec

  def action_spec(self):
    """Returns the spec of one episode's action: [1], the device of the current group."""
    return self._action_spec

  def begin(self, graphs: Sequence[int], seed: int, best: Sequence[np.ndarray]) -> None:
    """Chooses graphs, and sets all that their episodes depend on.

    Args:
      graphs: [P] see `choose`.
      seed: of all later samples.
      best: [P] of [G] int32, the best placement of each so far.

    Raises:
      PlacetoError: see `choose`.
    """
    self.choose(graphs)
    for graph, each, placement in zip(graphs, self.chosen, best):
      each.begin([seed, graph], placement)

  def _reset(self) -> ts.TimeStep:
    self._t = 0
    self._last = [each.reset() for each in self.chosen]  # observations
    return ts.restart(self._observe(), batch_size=self.batch_size)

  def _step(self, action) -> ts.TimeStep:
    # [B, 1] -> P parts of [R, 1], one per graph.
    parts = np.split(np.asarray(action), self._side_by_side)
    rewards = []
    for i, (each, part) in enumerate(zip(self.chosen, parts)):
      # The episode of a smaller graph is over; its row stays as it is and earns 0.
      if self._t < each.num_groups:
        self._last[i], reward = each.step(part)
      else:
        reward = np.zeros(self._rows, dtype=np.float32)
      rewards.append(reward)
    self._t += 1
    found = self._observe(), np.concatenate(rewards)
    # All rows end together, with the longest episode.
    if self._t == self.num_steps or not self._go_on():
      return ts.termination(*found, outer_dims=(self.batch_size,))
    # Discount 1: the return is the plain sum of the rewards.
    ones = np.ones(self.batch_size, dtype=np.float32)
    return ts.transition(*found, ones, outer_dims=(self.batch_size,))

  def _observe(self) -> Dict[str, np.ndarray]:
    rows, observation = self._rows, {}
    for name, spec in self._observation_spec.items():
      if name == observation_lib.GRAPH:
        # [P] -> [B, 1]: each graph's number in its R rows.
        observation[name] = np.repeat(np.array(self._graphs, dtype=np.int32), rows)[:, None]
        continue
      # [B, room]; columns of groups that a graph does not have stay 0.
      stacked = np.zeros((self.batch_size,) + spec.shape, dtype=spec.dtype)
      for i, of_graph in enumerate(self._last):
        value = of_graph[name]
        stacked[i * rows:(i + 1) * rows, :value.shape[1]] = value
      observation[name] = stacked
    return observation
