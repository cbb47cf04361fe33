"""A training graph whose layers are worth a pipeline on two slow devices."""

import training_models as models
from placeto_tf.replication import ReplicaSource

LAYERS, WIDTH, BATCH = 6, 512, 4096


def source(batch=BATCH, width=WIDTH, **options):
  graph = models.dense_graph(LAYERS, width, None, **options)
  return ReplicaSource(graph, {"fetches": ["train", "loss:0"], "batch_size": batch})
