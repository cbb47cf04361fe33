"""A training graph as R replicas, variables shared or mirrored: data parallelism as a graph."""

from placeto_tf.replication.batches import ReplicaSource, check_specs, load_with_replicas
from placeto_tf.replication.data_parallel import data_parallel
from placeto_tf.replication.replicated_costs import replicated_costs
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.replication.replicating import replicate

__all__ = [
    "ReplicaSource", "ReplicatedGraph", "check_specs", "data_parallel", "load_with_replicas",
    "replicate", "replicated_costs",
]
