"""Placeto as methods: one policy for any graph and cluster.

  placeto                  simulates moves in the order of the gains that the trained network
                           predicts, coarse to fine, at first several moves at once; then in turns
                           with annealing
  placeto_untrained        the same with initial weights from the seed, for comparison
  placeto_uniform          the same with moves sampled uniformly, for comparison
  placeto_paper            the published process, which learns on the graph at hand, from weights of
                           `train.py --preset=paper` or from scratch
  placeto_paper_zero_shot  the published process with such weights, without learning
  placeto_paper_random     the published process with devices sampled uniformly, for comparison
"""

from placeto_tf.problem.method import Kind, Method, Weights, WithoutWeights, deferred

_PLACERS = "placeto_tf.policies.placeto.placers"
_PUBLISHED = "placeto_tf.policies.placeto.published.search"
_LOAD = deferred("placeto_tf.policies.placeto.published.weights", "PublishedWeights.load")
_FLAGS = "--policy=placeto --preset=paper"
_PAPER = Weights("placeto_paper", WithoutWeights.LEARN, _LOAD, _FLAGS)

METHODS = (
    Method("placeto", Kind.POLICY, deferred(_PLACERS, "place"), title="Placeto", rank=1,
           repeats=True,
           weights=Weights("placeto", WithoutWeights.SHIPPED, deferred(_PLACERS, "trained")),
           in_auto=True),
    *(Method(name, Kind.POLICY, deferred(_PLACERS, "place_as_control", scored=scored), rank=rank,
             control_of=("placeto",))
      for rank, name, scored in ((2, "placeto_untrained", True), (3, "placeto_uniform", False))),
    Method("placeto_paper", Kind.POLICY, deferred(_PUBLISHED, "place"), rank=4, weights=_PAPER),
    Method("placeto_paper_zero_shot", Kind.POLICY,
           deferred(_PUBLISHED, "place", way="zero_shot"), rank=5,
           weights=Weights("placeto_paper", WithoutWeights.FAIL, _LOAD, _FLAGS)),
    Method("placeto_paper_random", Kind.POLICY, deferred(_PUBLISHED, "place", way="random"),
           rank=6, control_of=("placeto_paper", "placeto_paper_zero_shot"), weights=_PAPER),
)
TRAINABLE = deferred("placeto_tf.policies.placeto.training", "trainable")
