"""The device pointer as methods, beside what shows what its training gives.

  device_pointer   sweeps with trained weights, then annealing
  pointer_pass     one greedy round of three sweeps, coarse to fine, with a simulation a move, and
                   nothing after it

Each exists with `_untrained`, weights as initialized from the seed, and with `_uniform`, where
every group's device is drawn uniformly: the same procedure, but for what was learned.
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
_WEIGHTS = Weights("device_pointer", WithoutWeights.SHIPPED)

METHODS = (
    # `auto` anneals itself, so that the sweeps need not.
    Method("device_pointer", Kind.POLICY, deferred(_PLACERS, "place"), rank=2, weights=_WEIGHTS,
           islands=True, auto=AutoPart(Stage.POLICY, share=0.7, load=deferred(_PLACERS, "sweep"))),
    Method("device_pointer_untrained", Kind.POLICY, deferred(_PLACERS, "place_untrained"), rank=4),
    Method("device_pointer_uniform", Kind.POLICY, deferred(_PLACERS, "place_uniform"), rank=5),
    Method("pointer_pass", Kind.POLICY, deferred(_PLACERS, "place", one_pass=True), rank=6,
           weights=_WEIGHTS),
    Method("pointer_pass_untrained", Kind.POLICY,
           deferred(_PLACERS, "place_untrained", one_pass=True), rank=7),
    Method("pointer_pass_uniform", Kind.POLICY,
           deferred(_PLACERS, "place_uniform", one_pass=True), rank=8),
)
