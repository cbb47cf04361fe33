"""A training graph as R replicas that share its variables: data parallelism as a graph to place."""

from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.replication.replicating import replicate

__all__ = ["ReplicatedGraph", "replicate"]
