"""GDP as methods: from scratch on one graph, or with weights trained on others.

  gdp             trains a network on the graph at hand; with weights, the same as gdp_fine_tune
  gdp_zero_shot   places with given weights and learns nothing
  gdp_fine_tune   trains given weights further on the graph at hand
"""

from placeto_tf.problem.method import Kind, Method, Weights, WithoutWeights, deferred

_SEARCH = "placeto_tf.policies.gdp.search", "search_gdp"
_LOAD = deferred("placeto_tf.policies.gdp.policy", "load_network")

METHODS = (
    Method("gdp", Kind.ONE_SHOT, deferred(*_SEARCH), rank=3,
           weights=Weights("gdp", WithoutWeights.LEARN, _LOAD)),
    *(Method(f"gdp_{way}", Kind.ONE_SHOT, deferred(*_SEARCH, way=way), rank=4 + i,
             weights=Weights("gdp", WithoutWeights.FAIL, _LOAD))
      for i, way in enumerate(("zero_shot", "fine_tune"))),
)
TRAINABLE = deferred("placeto_tf.policies.gdp.training", "trainable")
