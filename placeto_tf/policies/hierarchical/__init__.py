"""The hierarchical placer (Mirhoseini, Goldie et al., ICLR 2018), trained on the graph at hand.

  hierarchical       groups ops and places the groups
  learned_grouping   the same, for its groups: what `grouping="learned"` runs first
"""

from placeto_tf.problem.method import Kind, Method, deferred

METHODS = tuple(
    Method(name, Kind.ONE_SHOT,
           deferred(
               "placeto_tf.policies.one_graph_search", "search_one_graph", policy="hierarchical"),
           rank=rank, summaries=True)
    for name, rank in (("hierarchical", 2), ("learned_grouping", 6)))
TRAINABLE = deferred("placeto_tf.policies.one_graph_training", "trainable", name="hierarchical")
