"""The learned placers that came before Placeto and beside it, as methods.

  rnn             the RNN-based placer (Mirhoseini et al., ICML 2017), trained on the graph at hand
  hierarchical    the hierarchical placer (Mirhoseini, Goldie et al., ICLR 2018), likewise
  gdp             GDP (Zhou et al. 2019): trains a network on the graph at hand; with weights, the
                  same as gdp_fine_tune
  gdp_zero_shot   places with given weights and learns nothing
  gdp_fine_tune   trains given weights further on the graph at hand
"""

from placeto_tf.problem.method import Kind, Method, Weights, WithoutWeights, deferred

_FOLDER = "placeto_tf.policies.baselines"
_GDP = f"{_FOLDER}.gdp"

METHODS = (
    *(Method(name, Kind.ONE_SHOT, deferred(f"{_FOLDER}.{name}", "POLICY.place"), rank=rank)
      for rank, name in ((1, "rnn"), (2, "hierarchical"))),
    *(Method(name, Kind.ONE_SHOT, deferred(_GDP, "search_gdp", **way), rank=rank,
             weights=Weights("gdp", without, deferred(_GDP, "load_network")))
      for rank, name, way, without in (
          (3, "gdp", {}, WithoutWeights.LEARN),
          (4, "gdp_zero_shot", {"way": "zero_shot"}, WithoutWeights.FAIL),
          (5, "gdp_fine_tune", {"way": "fine_tune"}, WithoutWeights.FAIL))),
)
TRAINABLE = {"gdp": deferred(f"{_FOLDER}.gdp_training", "trainable")}
