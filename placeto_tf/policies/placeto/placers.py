"""Runs Placeto on a problem, from the problem's best placement.

Beside the policy trained on a family there are controls: the same process, from the same start,
without the training.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.search import Improvement, improve
from placeto_tf.policies.placeto.weights import PlacetoWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem

# Way -> (policy of `improve`, whether it begins with the weights, whether it learns).
WAYS = {
    "zero_shot": ("placeto", True, False),
    "greedy": ("greedy", True, False),
    "fine_tune": ("placeto", True, True),
    "from_scratch": ("placeto", False, True),
    "untrained": ("placeto", False, False),
    "random": ("random", False, False),
}


def place(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, weights: Optional[str] = None,
    **options: Any) -> np.ndarray:
  """[N] placed by learning on the problem, from the weights in `weights` if that is given."""
  if weights is not None:
    return place_with(problem, budget, seed, weights=weights, way="fine_tune", **options)
  return improve(problem, problem.account.best_known, budget, seed, **options).op_placement


def place_without_learning(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, way: str,
    weights: Optional[str] = None, **options: Any) -> np.ndarray:
  """[N] placed by a process in which nothing is learned, to compare with.

  Args:
    way: "untrained", the network as initialized, or "random", devices drawn uniformly.
    weights: directory of a training run's, whose process it is; None is that of `place`.
  """
  if weights is not None:
    return place_with(problem, budget, seed, weights=weights, way=way, **options)
  return improve(
      problem, problem.account.best_known, budget, seed, policy=WAYS[way][0],
      config=PlacetoConfig(learn=False), **options).op_placement


def place_with(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, weights: str, way: str,
    **options: Any) -> np.ndarray:
  """[N] the problem's best placement after `improve_with`."""
  improve_with(weights, way, problem, problem.account.best_known, budget, seed, **options)
  return problem.account.best_known


def improve_with(
    directory: str,
    way: str,
    problem: PlacementProblem,
    start: np.ndarray,
    budget: Budget,
    seed: int = 0,
    *,
    root_dir: Optional[str] = None,
) -> Improvement:
  """`improve` with the choices, and perhaps the weights, of a training run.

  Args:
    directory: of weights, see `PlacetoWeights.load`.
    way: "zero_shot" samples from the trained policy and learns nothing, "greedy" plays one episode
      of its likeliest devices, "fine_tune" goes on learning on this graph, "from_scratch" learns
      on this graph alone, "untrained" uses initial weights and learns nothing, "random" draws
      devices uniformly.
    problem: its groups are placed; there should be about as many as in training. Episodes start
      from the best placement so far, but for "from_scratch" as in the training run.
    start: [N] devices of ops, which are projected on the problem's groups.
    budget, seed, root_dir: see `improve`.

  Raises:
    PlacetoError: there are no such weights, they are for another number of devices, or the way is
      unknown.
  """
  if way not in WAYS:
    raise PlacementError(f"way is {way!r}; expected one of {', '.join(WAYS)}")
  policy, trained, learn = WAYS[way]
  weights = PlacetoWeights.load(directory)
  weights.check(problem.num_devices)
  config = dataclasses.replace(weights.config, learn=learn)
  if way != "from_scratch" and config.environment.start == "random":
    # Training episodes begin anywhere, to learn from there; a search goes on from the best so far.
    config = dataclasses.replace(
        config, environment=dataclasses.replace(config.environment, start="best"))
  if way == "fine_tune":  # explores as much as when training ended
    config = dataclasses.replace(config, entropy=config.final_entropy)
  return improve(
      problem, problem.project(np.asarray(start)), budget, seed, root_dir=root_dir,
      config=config, policy=policy,
      weights=weights.arrays if trained else None, compiled=learn)
