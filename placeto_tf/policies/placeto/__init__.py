"""Placeto as methods: trained on the graph at hand, or with weights trained on other graphs.

  placeto              learns on the graph, from given weights or from scratch
  placeto_zero_shot    samples from the trained policy and learns nothing
  placeto_fine_tune    goes on learning on the graph

and two controls, in the process of the weights' training run, or of `placeto` where none are given:

  placeto_untrained    uses initial weights and learns nothing
  placeto_random       draws devices uniformly
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

_PLACERS = "placeto_tf.policies.placeto.placers"
_LOAD = deferred("placeto_tf.policies.placeto.weights", "PlacetoWeights.load")

METHODS = (
    # Learning on the graph at hand comes before the trained policy, which finds more and would
    # leave it nothing to improve. Importing and tracing it takes 9 to 17 s. Of a budget of a minute
    # that is all of its share, in which the trained policy and the searches find as much without
    # it. So it takes part where its share is 30 s, that is from about three minutes on, or where
    # evaluations alone are counted.
    Method("placeto", Kind.POLICY, deferred(_PLACERS, "place"), title="Placeto", rank=1,
           summaries=True,
           weights=Weights("placeto", WithoutWeights.LEARN, _LOAD),
           auto=AutoPart(
               Stage.POLICY, share=0.17, setup_seconds=30.0, setup_seconds_an_op=1e-4)),
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
