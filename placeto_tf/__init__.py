"""placeto_tf: decides on which device each op of a TensorFlow graph runs.

  import placeto_tf as placeto

  graph = placeto.load_graph("model.meta", batch_size=32)
  result = placeto.place(graph, placeto.Cluster.parse("k80:4"), max_seconds=60)
  placed = result.placement.apply(graph_def)

The public names are imported on first use, so that `import placeto_tf` costs nothing and programs
can still choose the Keras version before TensorFlow comes in.
"""

from __future__ import annotations

import importlib

from placeto_tf.errors import (
  ClusterError,
  CostError,
  GraphError,
  MeasurementError,
  PlacementError,
  PlacetoError,
  ReplicaMismatchError,
  SetupError,
)

__version__ = "0.2.0"

_HOMES = {
    "Cluster": "placeto_tf.clusters",
    "ComputationGraph": "placeto_tf.graphs",
    "Device": "placeto_tf.clusters",
    "MeasuredStep": "placeto_tf.runtime.measuring",
    "OpCosts": "placeto_tf.costs",
    "Placement": "placeto_tf.placements",
    "PlacedStep": "placeto_tf.placing.placed_training",
    "PlacedTraining": "placeto_tf.placing.placed_training",
    "TrainingPlan": "placeto_tf.placing.training_plans",
    "PlacingResult": "placeto_tf.placing.result",
    "TrainingComparison": "placeto_tf.runtime.comparing",
    "graph_tensor": "placeto_tf.agents",
    "load_environment": "placeto_tf.agents",
    "load_policy": "placeto_tf.agents",
    "run_policy": "placeto_tf.agents",
    "train": "placeto_tf.agents",
    "compare_training": "placeto_tf.runtime.comparing",
    "compile_placed": "placeto_tf.placing.placed_training",
    "compile_step": "placeto_tf.placing.placed_training",
    "plan_step": "placeto_tf.placing.training_plans",
    "plan_training": "placeto_tf.placing.training_plans",
    "estimate_costs": "placeto_tf.costs",
    "load_graph": "placeto_tf.graphs",
    "load_placed": "placeto_tf.placements",
    "measure": "placeto_tf.runtime.measuring",
    "place": "placeto_tf.placing.run",
    "simulate": "placeto_tf.placing.run",
}

__all__ = sorted(_HOMES) + [
    "ClusterError", "CostError", "GraphError", "MeasurementError", "PlacementError", "PlacetoError",
    "ReplicaMismatchError", "SetupError"]


def __getattr__(name: str):
  if name not in _HOMES:
    raise AttributeError(f"module 'placeto_tf' has no attribute {name!r}")
  value = getattr(importlib.import_module(_HOMES[name]), name)
  globals()[name] = value
  return value


def __dir__():
  return sorted(set(globals()) | set(__all__))
