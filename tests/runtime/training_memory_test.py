"""What does not fit into memory is not trained."""

import training_constructs as constructs
from unhurried import compare_training

from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.runtime import training_memory


def test_variables_that_do_not_fit_into_memory_are_not_trained(monkeypatch):
  import tensorflow as tf

  with tf.Graph().as_default() as graph:
    constructs.CONSTRUCTS["mean_loss"]()
  source = ReplicaSource(graph, {"fetches": ["train"], "batch_size": 8})
  monkeypatch.setattr(training_memory, "_free_bytes", lambda: 100.0)
  found = compare_training(source.graph, source.replicas(2))
  assert not found.checked and "of memory" in str(found)
