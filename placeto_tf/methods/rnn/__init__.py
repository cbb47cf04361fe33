"""The RNN-based placer as a method, trained on the graph at hand."""

from placeto_tf.problem.method import Kind, Method, deferred

METHODS = (
    Method("rnn", Kind.ONE_SHOT, deferred("placeto_tf.methods.rnn.search", "search_rnn"), rank=1),)
