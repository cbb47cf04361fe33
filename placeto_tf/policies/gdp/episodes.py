"""Samples of GDP: placements of one graph, drawn from the network and simulated.

Legend: B placements, M nodes.
"""

from __future__ import annotations

import dataclasses
from typing import List, Sequence

import numpy as np

from placeto_tf.policies.gdp.network import GdpConfig, GdpNetwork
from placeto_tf.policies.gdp.node_inputs import node_inputs
from placeto_tf.policies.gdp.policy import GdpPolicy
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.one_shot import OneShotConfig
from placeto_tf.training.one_shot_environment import OneShotEnvironment
from placeto_tf.training.one_shot_policy import Sample


@dataclasses.dataclass(frozen=True)
class SampleSpec:
  """What a sample depends on besides weights: the number of its graph, and its seed."""

  graph: int
  seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
  """Attributes: graph, its number; sample of B placements; their rewards [B] float32 and
  step_time_us [B] float64.
  """

  graph: int
  sample: Sample
  rewards: np.ndarray
  step_time_us: np.ndarray


def make_environments(
    problems: Sequence[PlacementProblem], config: OneShotConfig) -> List[OneShotEnvironment]:
  """An environment for each training problem."""
  return [
      OneShotEnvironment(
          each.allowed, SimulatedCost(each), batch_size=config.batch_size, graph=i,
          num_graphs=len(problems), invalid_reward=config.invalid_reward)
      for i, each in enumerate(problems)]


class SampleCollector:
  """A network of its own, and environments of training problems made by `node_problem`."""

  def __init__(
      self, network: GdpConfig, training: OneShotConfig, problems: Sequence[PlacementProblem]):
    """Args: network, training: of the learner."""
    problems = list(problems)
    self._network = GdpNetwork(network)
    self._policy = GdpPolicy(
        [node_inputs(each, network.max_devices) for each in problems], self._network)
    self._environments = make_environments(problems, training)

  def __call__(self, weights: Sequence[np.ndarray], spec: SampleSpec) -> Played:
    """Args: weights: of the learner's network."""
    for variable, value in zip(self._network.variables, weights):
      variable.assign(value)
    environment = self._environments[spec.graph]
    sample = self._policy.sample(
        np.random.default_rng(spec.seed), environment.batch_size, spec.graph)
    environment.reset()
    rewards = np.asarray(environment.step(sample.placements).reward)
    return Played(spec.graph, sample, rewards, environment.step_time_us)
