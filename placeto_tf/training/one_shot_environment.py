"""An environment that places a whole graph in one action, with many placements side by side.

The reward is that of Mirhoseini et al. (2017, section 3; 2018, section 3) and of GDP (section 3):
minus the square root of the step time in seconds, or a constant if a placement does not fit.

Dimensions: B placements side by side, G groups (or ops), D devices.
"""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from placeto_tf.problem.placement_problem import PlacementProblem

INVALID_REWARD = -10.0  # of a placement that does not fit


class OneShotEnvironment(py_environment.PyEnvironment):
  """A batched tf-agents environment; an action decides the device of every group.

  The observation is the index of the graph. The graph does not change, so policies hold a table of
  their graphs.

  Attributes, of the last step:
    step_time_us: [B] float64; infinite for placements on devices that are not allowed, which are
      not simulated.
    fits: [B] bool.
  """

  def __init__(
      self, problem: PlacementProblem, *, batch_size: int, graph: int = 0, num_graphs: int = 1,
      decisions: Optional[array_spec.ArraySpec] = None,
      placements: Callable[[np.ndarray], np.ndarray] = lambda decisions: decisions):
    """Sets the specs.

    Args:
      problem: evaluates placements of its groups. An action with devices that are not allowed gets
        `INVALID_REWARD` and is not simulated.
      batch_size: B.
      graph: the index of this graph, for policies of many graphs.
      num_graphs: number of graphs of the policy.
      decisions: spec of an action; None takes the devices [G] as actions.
      placements: actions [B, ...] -> devices [B, G].
    """
    super().__init__(handle_auto_reset=True)
    self._problem, self._batch_size = problem, batch_size
    self._graph, self._num_graphs = graph, num_graphs
    g, d = problem.allowed.shape
    self._decisions = decisions or array_spec.BoundedArraySpec(
        (g,), np.int32, 0, d - 1, name="device")
    self._placements = placements
    self.step_time_us = np.full(batch_size, np.inf)
    self.fits = np.zeros(batch_size, dtype=bool)

  @property
  def batched(self) -> bool:
    """Returns that placements come in batches."""
    return True

  @property
  def batch_size(self) -> int:
    """Returns B."""
    return self._batch_size

  def observation_spec(self):
    """Returns the spec of an observation: a scalar, the index of the graph."""
    return array_spec.BoundedArraySpec((), np.int32, 0, self._num_graphs - 1, name="graph")

  def action_spec(self):
    """Returns the spec of an action: the vector of decisions."""
    return self._decisions

  def _reset(self):
    return ts.restart(self._observe(), batch_size=self._batch_size)

  def _step(self, action):
    # [B, A] decisions -> [B, G] devices.
    devices = np.asarray(self._placements(action), dtype=np.int32)
    groups = np.arange(len(self._problem.allowed))
    # [B] bool, rows with every group on an allowed device; only these are evaluated.
    simulated = self._problem.allowed[groups, devices].all(axis=1)
    self.step_time_us = np.full(self._batch_size, np.inf)
    self.fits = np.zeros(self._batch_size, dtype=bool)
    if simulated.any():
      found = self._problem.evaluate(devices[simulated])
      self.step_time_us[simulated], self.fits[simulated] = found.step_time_us, found.fits
    # Minus the square root of seconds, which weighs differences between slow placements less.
    reward = np.where(self.fits, -np.sqrt(self.step_time_us / 1e6), INVALID_REWARD)
    return ts.termination(
        self._observe(), reward.astype(np.float32), outer_dims=(self._batch_size,))

  def _observe(self) -> np.ndarray:
    return np.full(self._batch_size, self._graph, dtype=np.int32)
