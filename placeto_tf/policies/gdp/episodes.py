"""Samples of GDP: placements of one graph, drawn from the network and simulated.

Legend: B placements.
"""

from __future__ import annotations

import dataclasses
from typing import List, Sequence

import numpy as np
from tf_agents.trajectories import trajectory

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.policies.gdp.learner import PpoConfig
from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import node_inputs
from placeto_tf.policies.gdp.policy import GdpPolicy
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training import driving
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.one_shot_environment import OneShotEnvironment


@dataclasses.dataclass(frozen=True)
class SampleSpec:
  """What a sample depends on besides weights: the number of its graph, and its seed."""

  graph: int
  seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
  """Attributes: graph, its number; steps [B, 1, ...], as a driver played them; step_time_us [B]
  float64.
  """

  graph: int
  steps: trajectory.Trajectory
  step_time_us: np.ndarray


class SampleCollector:
  """A network of its own, and environments of training problems made by `node_problem`."""

  def __init__(
      self, network: GdpConfig, training: PpoConfig, problems: Sequence[PlacementProblem]):
    """Args: network, training: of the learner."""
    self._network = GdpNetwork(network)
    self._policy = GdpPolicy(
        [node_inputs(GroupedGraph.of(each), network.max_devices) for each in problems],
        self._network)
    self._environments: List[OneShotEnvironment] = [
        OneShotEnvironment(
            each.allowed, SimulatedCost(each), batch_size=training.batch_size, graph=i,
            num_graphs=len(problems), invalid_reward=training.invalid_reward)
        for i, each in enumerate(problems)]

  def __call__(self, weights: Sequence[np.ndarray], spec: SampleSpec) -> Played:
    """Args: weights: of the learner's network."""
    for variable, value in zip(self._network.variables, weights):
      variable.assign(value)
    environment = self._environments[spec.graph]
    steps = driving.play(environment, self._policy.act(np.random.default_rng(spec.seed)))
    return Played(spec.graph, steps, environment.step_time_us)
