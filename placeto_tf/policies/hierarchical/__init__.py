"""The hierarchical placer (Mirhoseini, Goldie et al., ICLR 2018), trained on the graph at hand."""

from placeto_tf.problem.method import Kind, Method, deferred

METHODS = (
    Method("hierarchical", Kind.ONE_SHOT,
           deferred("placeto_tf.policies.hierarchical.policy", "POLICY.place"),
           rank=2),
)
