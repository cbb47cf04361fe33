"""The RNN-based placer (Mirhoseini et al., ICML 2017) as a method, trained on the graph at hand."""

from placeto_tf.problem.method import Kind, Method, deferred

METHODS = (
    Method("rnn", Kind.ONE_SHOT,
           deferred("placeto_tf.policies.rnn.policy", "POLICY.place"),
           rank=1),
)
