"""Runs Placeto on a problem, from the problem's best placement.

Beside the policy trained on a family there are controls: the same process, from the same start,
without the training.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.search import improve
from placeto_tf.policies.placeto.weights import PlacetoWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem


def place(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, way: str = "fine_tune",
    weights: Optional[str] = None, root_dir: Optional[str] = None) -> np.ndarray:
  """[N] the problem's best placement after a search.

  Args:
    problem: its groups are placed; there should be about as many as in training.
    budget, seed, root_dir: see `improve`.
    way: "fine_tune" learns on the problem, "zero_shot" learns nothing. Two others, to compare with,
      learn nothing either: "untrained" uses the network as initialized, "random" draws devices
      uniformly.
    weights: directory of a training run, see `PlacetoWeights.load`, whose process it is and, for
      the first two ways, whose weights it begins with. None is the process of `PlacetoConfig` from
      initial weights.

  Raises:
    PlacetoError: there are no such weights, or they are for another number of devices.
  """
  config, start, learns, arrays = (
      PlacetoConfig(), problem.account.best_known, way == "fine_tune", None)
  if weights is not None:
    trained = PlacetoWeights.load(weights)
    trained.check(problem.num_devices)
    config, start = trained.config, problem.project(start)
    if config.environment.start == "random":
      # Training episodes begin anywhere, to learn from there; a search goes on from the best.
      config = dataclasses.replace(
          config, environment=dataclasses.replace(config.environment, start="best"))
    if learns:  # explores as much as when training ended
      config = dataclasses.replace(config, entropy=config.final_entropy)
    if way in ("fine_tune", "zero_shot"):
      arrays = trained.arrays
  improve(
      problem, start, budget, seed, root_dir=root_dir, config=config, learns=learns,
      uniform=way == "random", weights=arrays, compiled=learns and weights is not None)
  return problem.account.best_known
