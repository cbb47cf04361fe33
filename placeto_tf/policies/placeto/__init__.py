"""Placeto as methods: trained on the graph at hand, or with weights trained on other graphs.

  placeto              learns on the graph, from given weights or from scratch
  placeto_zero_shot    samples from the trained policy and learns nothing
  placeto_fine_tune    goes on learning on the graph

and two controls, in the process of the weights' training run, or of `placeto` where none are given:

  placeto_untrained    uses initial weights and learns nothing
  placeto_random       draws devices uniformly
"""

from placeto_tf.problem.method import (
    Kind,
    Method,
    Weights,
    WithoutWeights,
    deferred,
)

_PLACERS = "placeto_tf.policies.placeto.placers"
_LOAD = deferred("placeto_tf.policies.placeto.weights", "PlacetoWeights.load")

METHODS = (
    # No part of `auto`: what it gained there was nothing on record, for most of the time.
    Method("placeto", Kind.POLICY, deferred(_PLACERS, "place"), title="Placeto", rank=1,
           summaries=True, weights=Weights("placeto", WithoutWeights.LEARN, _LOAD)),
    *(Method(f"placeto_{way}", Kind.POLICY, deferred(_PLACERS, "place", way=way),
             rank=10 + i, summaries=True, weights=Weights("placeto", WithoutWeights.FAIL, _LOAD))
      for i, way in enumerate(("zero_shot", "fine_tune"))),
    *(Method(f"placeto_{way}", Kind.POLICY,
             deferred(_PLACERS, "place", way=way), rank=12 + i, summaries=True,
             control_of=("placeto", "placeto_zero_shot"),
             weights=Weights("placeto", WithoutWeights.LEARN, _LOAD))
      for i, way in enumerate(("untrained", "random"))),
)
TRAINABLE = deferred("placeto_tf.policies.placeto.training", "trainable")
