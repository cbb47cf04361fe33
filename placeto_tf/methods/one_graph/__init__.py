"""The RNN-based and the hierarchical placer as methods, trained on the graph at hand.

  rnn                places the groups of the colocation heuristic
  hierarchical       groups ops and places the groups
  learned_grouping   the same, for its groups: what `grouping="learned"` runs first
"""

from placeto_tf.problem.method import Kind, Method, deferred

METHODS = tuple(
    Method(name, Kind.ONE_SHOT,
           deferred("placeto_tf.methods.one_graph.search", "search_one_graph", policy=policy),
           rank=rank)
    for name, policy, rank in (
        ("rnn", "rnn", 1), ("hierarchical", "hierarchical", 2),
        ("learned_grouping", "hierarchical", 6)))
