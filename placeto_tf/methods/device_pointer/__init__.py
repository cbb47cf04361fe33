"""The device pointer as methods, with controls that show what its training adds.

  device_pointer   moves simulated in the order of what a trained scorer says they gain, coarse to
                   fine, then annealing
  pointer_pass     one greedy round of three sweeps, coarse to fine, with a simulation a move, and
                   nothing after it, by a scorer that PPO trained

Each exists with `_untrained`, weights as initialized from the seed, and with `_uniform`, where
moves are drawn uniformly: the same procedure, but for what was learned.
"""

from placeto_tf.problem.method import (
    AutoPart,
    Kind,
    Method,
    Stage,
    Weights,
    WithoutWeights,
    deferred,
)

_PLACERS = "placeto_tf.methods.device_pointer.placers"


def _weights(policy: str, predicts: str) -> Weights:
  return Weights(policy, WithoutWeights.SHIPPED, deferred(_PLACERS, "trained", predicts=predicts))


METHODS = (
    # `auto` anneals itself, so that the policy need not.
    Method("device_pointer", Kind.POLICY, deferred(_PLACERS, "place"), rank=2, islands=True,
           weights=_weights("device_pointer", "gain"),
           auto=AutoPart(
               Stage.POLICY, share=0.7, load=deferred(_PLACERS, "place_in_auto"), trial=60)),
    Method("device_pointer_untrained", Kind.POLICY, deferred(_PLACERS, "place_untrained"), rank=4),
    Method("device_pointer_uniform", Kind.POLICY, deferred(_PLACERS, "place_uniform"), rank=5),
    Method("pointer_pass", Kind.POLICY, deferred(_PLACERS, "one_pass"), rank=6,
           weights=_weights("pointer_pass", "preference")),
    Method("pointer_pass_untrained", Kind.POLICY, deferred(_PLACERS, "one_pass_untrained"), rank=7),
    Method("pointer_pass_uniform", Kind.POLICY, deferred(_PLACERS, "one_pass_uniform"), rank=8),
)
