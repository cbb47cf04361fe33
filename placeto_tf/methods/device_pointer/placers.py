"""Runs the device pointer on a problem, from the problem's best placement.

Each function is the `Run` of a method; see the package. None imports TensorFlow.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from placeto_tf.policies.device_pointer.scorer import ScorerWeights, pretrained
from placeto_tf.policies.device_pointer.sweeps import SweepConfig, Sweeper
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.method import Progress
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.annealing import anneal

ONE_PASS = SweepConfig(
    levels=(0.125, 0.5, 2.0), rounds=1, greedy=1, thorough=0, block=1, anneal=False)


def place(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, weights: Optional[str] = None,
    root_dir: Optional[str] = None, progress: Optional[Progress] = None, one_pass: bool = False
) -> np.ndarray:
  """[N] placed with trained weights: those in the directory, or those of the package."""
  del root_dir, progress
  return improve(problem, problem.best_known, _trained(weights), budget, seed,
                 config=_config(one_pass))


def sweep(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, weights: Optional[str] = None,
    root_dir: Optional[str] = None, progress: Optional[Progress] = None) -> np.ndarray:
  """[N] placed as by `place`, without its annealing."""
  del root_dir, progress
  return improve(problem, problem.best_known, _trained(weights), budget, seed,
                 config=SweepConfig(anneal=False))


def place_untrained(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, weights: Optional[str] = None,
    root_dir: Optional[str] = None, progress: Optional[Progress] = None, one_pass: bool = False
) -> np.ndarray:
  """[N] placed with weights as initialized from the seed."""
  del weights, root_dir, progress
  return improve(problem, problem.best_known, ScorerWeights.untrained(seed), budget, seed,
                 config=_config(one_pass))


def place_uniform(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, weights: Optional[str] = None,
    root_dir: Optional[str] = None, progress: Optional[Progress] = None, one_pass: bool = False
) -> np.ndarray:
  """[N] placed with devices drawn uniformly."""
  del weights, root_dir, progress
  return improve(problem, problem.best_known, indifferent(), budget, seed,
                 config=dataclasses.replace(_config(one_pass), greedy=0))


def indifferent() -> ScorerWeights:
  """Weights that score all devices alike, so that draws from the softmax are uniform."""
  drawn = ScorerWeights.untrained()
  return dataclasses.replace(drawn, output=np.zeros_like(drawn.output))


def _trained(directory: Optional[str]) -> ScorerWeights:
  return pretrained() if directory is None else ScorerWeights.load(directory)


def _config(one_pass: bool) -> SweepConfig:
  return ONE_PASS if one_pass else SweepConfig()


def improve(
    problem: PlacementProblem,
    start: np.ndarray,
    weights: ScorerWeights,
    budget: Budget,
    seed: int = 0,
    *,
    config: Optional[SweepConfig] = None,
) -> np.ndarray:
  """[N] the best placement found from a start [N] within the budget; never worse than the start.

  Args:
    problem: evaluates placements; the best that it has seen may be returned.
    start: [N] where to begin.
    weights: of the scorer.
    budget: as for every search.
    seed: of the draws and of annealing.
    config: how the scorer is used.
  """
  config = config or SweepConfig()
  placement = np.asarray(start, dtype=np.int32)
  part = budget.share(problem, config.scorer_share) if config.anneal else budget
  if not problem.exhausted(part):
    Sweeper(problem, placement, weights, config=config, seed=seed).run(part)
  if config.anneal and not problem.exhausted(budget):
    return anneal(problem, budget, seed)
  return best_so_far(problem, placement)
