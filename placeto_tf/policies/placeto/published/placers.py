"""Runs the published process on a problem, from the problem's best placement.

Dimensions: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.search import improve
from placeto_tf.policies.placeto.published.weights import PublishedWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem


def place(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, way: str = "fine_tune",
    weights: Optional[str] = None) -> np.ndarray:
  """Improves the problem's best placement by episodes of the published process.

  Args:
    problem: its groups are placed; their number should be about that of training.
    budget, seed: see `improve`.
    way: "fine_tune" learns on the problem, "zero_shot" learns nothing, and "random" samples devices
      uniformly, for comparison.
    weights: directory of a training run (see `PublishedWeights.load`), for the configuration and
      the initial weights. None takes `PublishedConfig` and random initial weights.

  Returns:
    [N] the problem's best placement.

  Raises:
    PlacetoError: the weights are missing, or are for another number of devices.
  """
  config, arrays = PublishedConfig(), None
  if weights is not None:
    trained = PublishedWeights.load(weights)
    trained.check(problem.num_devices)
    config = trained.config
    if way == "fine_tune":  # with as much exploration as at the end of training
      config = dataclasses.replace(config, entropy=config.final_entropy)
    if way != "random":
      arrays = trained.arrays
  # A search continues from the best placement, even if episodes of training began elsewhere.
  config = dataclasses.replace(
      config, environment=dataclasses.replace(config.environment, start="best"))
  improve(
      problem, problem.project(problem.search_log.best_known), budget, seed, config=config,
      learns=way == "fine_tune", uniform=way == "random", weights=arrays)
  return problem.search_log.best_known
