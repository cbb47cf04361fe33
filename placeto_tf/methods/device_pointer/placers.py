"""The device pointer as methods of an evaluation, beside what shows what its training gives.

  device_pointer   sweeps with trained weights, then annealing, as `place` runs it
  pointer_pass     one greedy round of three sweeps, coarse to fine, with a simulation a move, and
                   nothing after it

Each exists with `_untrained`, weights as initialized from the seed, and with `_uniform`, where
every group's device is drawn uniformly: the same procedure, but for what was learned.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Callable, Dict, Mapping, Optional

import numpy as np

from placeto_tf.policies.device_pointer.scorer import ScorerWeights, pretrained
from placeto_tf.policies.device_pointer.sweeps import SweepConfig, improve
from placeto_tf.problem.ledger import Placer
from placeto_tf.problem.placement_problem import Budget, PlacementProblem

PASS_LEVELS = (0.125, 0.5, 2.0)
CONFIGS: Mapping[str, SweepConfig] = MappingProxyType({
    "device_pointer": SweepConfig(),
    "pointer_pass": SweepConfig(
        levels=PASS_LEVELS, rounds=1, greedy=1, block=1, anneal=False),
})
NAMES = tuple(config + kind for config in CONFIGS for kind in ("", "_untrained", "_uniform"))


def pointer_methods(weights_dir: Optional[str] = None) -> Dict[str, Placer]:
  """The placers by name; each starts from the problem's best placement, which there must be.

  Args:
    weights_dir: trained weights; by default those that ship with the package.
  """
  def trained(seed: int) -> ScorerWeights:
    del seed
    return pretrained() if weights_dir is None else ScorerWeights.load(weights_dir)

  placers: Dict[str, Placer] = {}
  for name, config in CONFIGS.items():
    placers[name] = _placer(trained, config)
    placers[f"{name}_untrained"] = _placer(ScorerWeights.untrained, config)
    # Where all scores are equal, the draws from the softmax are uniform.
    placers[f"{name}_uniform"] = _placer(_indifferent, dataclasses.replace(config, greedy=0))
  return placers


def _placer(weights: Callable[[int], ScorerWeights], config: SweepConfig) -> Placer:
  def place(problem: PlacementProblem, budget: Budget, seed: int) -> np.ndarray:
    return improve(problem, problem.best_placement, weights(seed), budget, seed, config=config)
  return place


def _indifferent(seed: int) -> ScorerWeights:
  drawn = ScorerWeights.untrained(seed)
  return dataclasses.replace(drawn, output=np.zeros_like(drawn.output))
