"""The hierarchical placer as methods, trained on the graph at hand.

  hierarchical       groups ops and places the groups
  learned_grouping   the same, for its groups: what `grouping="learned"` runs first
"""

from placeto_tf.problem.method import Kind, Method, deferred

_SEARCH = "placeto_tf.methods.hierarchical.search", "search_hierarchical"

METHODS = (
    Method("hierarchical", Kind.ONE_SHOT, deferred(*_SEARCH), rank=2),
    Method("learned_grouping", Kind.ONE_SHOT, deferred(*_SEARCH), rank=6),
)
