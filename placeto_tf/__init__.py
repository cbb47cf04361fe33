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

__version__ = "0.2.0"

# Module of placeto_tf -> its public names.
_PUBLIC = {
    "agents": "graph_tensor load_environment load_policy run_policy train",
    "clusters": "Cluster Device",
    "costs": "OpCosts estimate_costs",
    "errors": "ClusterError CostError GraphError MeasurementError PlacementError PlacetoError "
              "ReplicaMismatchError SetupError",
    "graphs": "ComputationGraph load_graph",
    "placements": "Placement load_placed",
    "placing.placed_training": "PlacedStep PlacedTraining compile_placed compile_step",
    "placing.result": "PlacingResult",
    "placing.run": "place simulate",
    "placing.training_plans": "TrainingPlan plan_step plan_training",
    "runtime.comparing": "TrainingComparison compare_training",
    "runtime.measuring": "MeasuredStep measure",
}
_HOMES = {name: f"placeto_tf.{home}" for home, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str):
  if name not in _HOMES:
    raise AttributeError(f"module 'placeto_tf' has no attribute {name!r}")
  value = getattr(importlib.import_module(_HOMES[name]), name)
  globals()[name] = value
  return value


def __dir__():
  return sorted(set(globals()) | set(__all__))
