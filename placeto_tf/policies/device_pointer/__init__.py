"""The device pointer as methods, with controls that show what its training adds.

  device_pointer   moves simulated in the order of what a trained scorer says they gain, coarse to
                   fine, then annealing

It exists with `_untrained`, weights as initialized from the seed, and with `_uniform`, where moves
are drawn uniformly: the same procedure, but for what was learned.
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

_PLACERS = "placeto_tf.policies.device_pointer.placers"


METHODS = (
    # `auto` anneals itself, so that the policy need not.
    Method("device_pointer", Kind.POLICY, deferred(_PLACERS, "place"), rank=2, islands=True,
           weights=Weights(
               "device_pointer", WithoutWeights.SHIPPED, deferred(_PLACERS, "trained")),
           auto=AutoPart(
               Stage.POLICY, share=0.7, load=deferred(_PLACERS, "place_in_auto"), trial=60)),
    Method("device_pointer_untrained", Kind.POLICY, deferred(_PLACERS, "place_untrained"), rank=4,
           control_of=("device_pointer",)),
    Method("device_pointer_uniform", Kind.POLICY, deferred(_PLACERS, "place_uniform"), rank=5,
           control_of=("device_pointer",)),
)
TRAINABLE = deferred("placeto_tf.policies.device_pointer.training", "trainable")
