"""Several graphs as one environment: an episode is of the graph that was chosen, then of another.

Observations are padded to the largest graph and name the graph they are of, so that one network
serves all; see `environments.observation`. Episodes of a batch are all of one graph, and as long
as it has groups.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from placeto_tf.environments import observation as observation_lib
from placeto_tf.environments.placement_environment import PlacementEnvironment
from placeto_tf.errors import PlacetoError


class FamilyEnvironment(py_environment.PyEnvironment):
  """A batched tf-agents environment made of those of single graphs.

  Attributes:
    environments: one a graph, of as many episodes side by side, groups a step and devices.
    graph: number of the graph that the next episodes are of.
  """

  def __init__(
      self, environments: Sequence[PlacementEnvironment], *, max_groups: Optional[int] = None):
    """Args: max_groups: room in observations; by default what the largest graph needs.

    Raises:
      PlacetoError: a graph has more groups than there is room for, or devices, groups a step or
        episodes differ from graph to graph.
    """
    super().__init__(handle_auto_reset=True)
    self.environments: List[PlacementEnvironment] = list(environments)
    self.graph = 0
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
            f"{each.action_spec().shape[0]} groups a step and {each.batch_size} episodes; "
            f"graph 0 has {action.maximum + 1}, {action.shape[0]} and "
            f"{self.environments[0].batch_size}; they must be alike")
    self._action_spec = action
    self._observation_spec = observation_lib.observation_spec(
        self._room, int(action.maximum) + 1, action.shape[0], len(self.environments))

  @property
  def batched(self) -> bool:
    """Episodes come in batches."""
    return True

  @property
  def batch_size(self) -> int:
    """Episodes side by side."""
    return self.environments[0].batch_size

  @property
  def current(self) -> PlacementEnvironment:
    """Of the chosen graph."""
    return self.environments[self.graph]

  def observation_spec(self):
    """See `environments.observation`; of one episode."""
    return self._observation_spec

  def action_spec(self):
    """[K] devices; of one episode."""
    return self._action_spec

  def state_dict(self) -> Dict[str, Any]:
    """What the next episodes depend on, as JSON takes it; between two episodes."""
    return {"environments": [each.state_dict() for each in self.environments]}

  def load_state_dict(self, state: Dict[str, Any]) -> None:
    """Goes back to a `state_dict`."""
    for each, stored in zip(self.environments, state["environments"]):
      each.load_state_dict(stored)

  def _reset(self) -> ts.TimeStep:
    return self._padded(self.current.reset())

  def _step(self, action) -> ts.TimeStep:
    return self._padded(self.current.step(action))

  def _padded(self, time_step: ts.TimeStep) -> ts.TimeStep:
    missing = self._room - self.current.num_groups
    observation = {
        name: value if name == observation_lib.CURRENT else np.pad(value, ((0, 0), (0, missing)))
        for name, value in time_step.observation.items()}
    observation[observation_lib.GRAPH] = np.full((self.batch_size, 1), self.graph, np.int32)
    return time_step._replace(observation=observation)
