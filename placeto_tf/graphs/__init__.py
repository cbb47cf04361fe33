"""Reading TensorFlow graphs into `ComputationGraph`, the arrays that all other folders work on."""

from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph, GraphSource
from placeto_tf.graphs.cost_graphs import cost_nodes
from placeto_tf.graphs.exported_protos import analysis_graph_def, rewritten_proto
from placeto_tf.graphs.loading import load_graph

__all__ = [
    "CONTROL", "ComputationGraph", "GraphSource", "analysis_graph_def", "cost_nodes", "load_graph",
    "rewritten_proto",
]
