"""`compile_placed()`: a compiled Keras model whose training step runs placed.

Keras asks a model for its train function before it trains and hands it an iterator of batches. The
model is given a train function that runs the placed step for the batch's shape. All other parts of
Keras (callbacks, metrics, evaluate, predict, saving) work as before, with the moved variables.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Callable, Dict, Hashable, List, Optional, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.graphs import ComputationGraph, keras_models, load_graph
from placeto_tf.placements import Placement, keras_batches, place_function
from placeto_tf.placements.applied import AppliedFunction
from placeto_tf.placements.following import placed_alike
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.run import place
from placeto_tf.replication import ReplicaSource, replicate

_ENOUGH = 0.9  # least share of ops known by name for a trace of the same step


@dataclasses.dataclass(frozen=True, eq=False)
class BatchStep:
  """The step for batches of one shape.

  Attributes:
    batch_size: of the batches; None if it is not known.
    function: takes a batch.
    how: "placed" by a search, "alike" (as the placed one), or "unplaced".
    replicas: among which the batch is divided.
  """

  batch_size: Optional[int]
  function: Callable[[Any], Any]
  how: str
  replicas: int = 1


class PlacedTraining:
  """A Keras model's training, placed; see `compile_placed`.

  Attributes:
    model: the Keras model.
    cluster: the devices.
    result: what `place()` found; None before the first batch is known.
    applied: the placed step, with the step time that was promised and that of what runs.
    steps: the step for each shape of batches seen.
  """

  def __init__(self, model: Any, cluster: Cluster, options: Dict[str, Any]):
    self.model = model
    self.cluster = cluster
    self.result: Optional[PlacingResult] = None
    self.applied: Optional[AppliedFunction] = None
    self._options = options
    self._by_key: Dict[Hashable, BatchStep] = {}
    self._specs: Any = None  # of the batch that was placed
    self._compiled = keras_batches.compiled_state(model)

  @property
  def steps(self) -> List[BatchStep]:
    """The steps by shape, in the order in which they were first met."""
    return list(self._by_key.values())

  def __str__(self) -> str:
    if self.applied is None:
      return "the training step is placed when the first batch comes"
    first, *later = self.steps
    replicas = f"; {first.replicas} replicas share each batch" if first.replicas > 1 else ""
    check = self.result.replication.check if self.result and self.result.replication else None
    replicas += f"; {check}" if check is not None and first.replicas > 1 else ""
    others = "".join(f"; batches of {step.batch_size} run {step.how}" for step in later)
    return f"{self.applied}{replicas}{others}"

  def plan(self, specs: Any) -> None:
    """Searches a placement for batches of these specs and applies it."""
    function = keras_batches.trace_step(self.model, specs)
    graph: Any = load_graph(function)
    if self._options.get("replicas", 1) != 1:
      graph = ReplicaSource(graph, part=lambda count: self._part(specs, count))
    result = place(graph, self.cluster, **self._options)
    chosen = None if result.replication is None else result.replication.chosen
    replicas = 1 if chosen is None else chosen.replicas
    applied = result.apply(function if replicas == 1 else _function_of(result.graph))
    self.result, self.applied, self._specs = result, applied, specs
    self._by_key[keras_batches.key_of(specs)] = BatchStep(
        keras_batches.size_of(specs), applied.function, "placed", replicas)

  def _part(self, specs: Any, replicas: int) -> ComputationGraph:
    """The step of one of R replicas of a batch."""
    return load_graph(
        keras_batches.trace_step(self.model, keras_batches.divided(specs, replicas)))

  def run_step(self, data: Any) -> Any:
    """Trains on one batch; returns the logs of the model's `train_step`."""
    batch = keras_batches.as_batch(data, _floatx(self.model))
    if self._specs is not None:
      batch = keras_batches.cast_like(batch, self._specs)
    specs = keras_batches.specs_of(batch)
    key = keras_batches.key_of(specs)
    if key not in self._by_key:
      if self.result is None:
        self.plan(specs)
      else:
        self._by_key[key] = self._follow(self.result, specs)
    logs = self._by_key[key].function(batch)
    counter = getattr(self.model, "_train_counter", None)  # of Keras 2
    if counter is not None:
      counter.assign_add(1)
    return logs

  def train_function(self, iterator: Any) -> Any:
    """Called by Keras: trains on the next batches, as many as one call should."""
    import tensorflow as tf

    logs = None
    for done in range(keras_batches.steps_per_execution(self.model)):
      try:
        data = next(iterator)
      except (StopIteration, tf.errors.OutOfRangeError):
        if not done:
          raise
        break
      logs = self.run_step(data)
    return logs

  def make_train_function(self, force: bool = False) -> Any:
    """Replaces the model's own method, which Keras calls before it trains."""
    if keras_batches.compiled_state(self.model) != self._compiled:
      warnings.warn(
          "the model has been compiled again since compile_placed: its training runs unplaced; "
          "call compile_placed again", stacklevel=2)
      self.undo()
      return self.model.make_train_function(force)
    self.model.train_function = self.train_function
    return self.model.train_function

  def undo(self) -> None:
    """Gives the model its own train function back; variables stay where they are."""
    if self.model.__dict__.get("make_train_function") is not None:
      del self.model.__dict__["make_train_function"]
    self.model.train_function = None

  def _follow(self, result: PlacingResult, specs: Any) -> BatchStep:
    """The step for another shape, such as a partial last batch: placed as the first one is."""
    size = keras_batches.size_of(specs)
    replicas = self.steps[0].replicas
    if replicas > 1 and size is not None and size % replicas == 0:
      whole = load_graph(keras_batches.trace_step(self.model, specs))
      graph = replicate(self._part(specs, replicas), replicas, whole=whole).graph
      function = _function_of(graph)
    else:
      function = keras_batches.trace_step(self.model, specs)
      graph, replicas = load_graph(function), 1
    placement = result.placement
    if replicas < self.steps[0].replicas:
      placement = _of_first_replica(result)
    placement, known = placed_alike(placement, graph, function, result.cluster)
    if known >= _ENOUGH:
      return BatchStep(size, place_function(placement, function).function, "alike", replicas)
    warnings.warn(
        f"batches such as {specs} take a step of their own ({known:.0%} of its ops are those of "
        "the placed one), which runs unplaced; train with batches as at the first step",
        stacklevel=4)
    return BatchStep(size, function, "unplaced")


def compile_placed(
    model: Any,
    cluster: Union[Cluster, str],
    *,
    batch_size: Optional[int] = None,
    data: Any = None,
    **options: Any,
) -> PlacedTraining:
  """Places the training step of a compiled Keras model, for `fit` and `train_on_batch`.

  Call it after `model.compile`. The model stays the same object with the same variables, which are
  moved to their devices: evaluate, predict, callbacks, metrics, checkpoints and saving go on as
  before. Training is turned off for XLA (`jit_compile`). Batches of another size than the first,
  such as a partial last one, run on the same devices, op by op.

  Args:
    model: a compiled model of Keras 2 or Keras 3.
    cluster: a `Cluster`, or text for `Cluster.parse`; with devices that this process has.
    batch_size: places now, for batches of this size of the model's inputs.
    data: places now, for a batch like this one: (inputs, targets), as arrays, tensors or
      TensorSpecs, or a `tf.data.Dataset` of batches. Without both the step is placed when the first
      batch comes.
    **options: of `place()`: method, max_seconds, max_evaluations, seed, replicas, ... With
      replicas=N or "auto" the batch is divided among replicas that share the variables; batches
      that N does not divide run on one.

  Returns:
    The placed training, which can be printed; its `undo()` gives the model its own step back.

  Raises:
    PlacetoError: the model is not compiled, belongs to a distribution strategy, or its step cannot
      be traced or placed.
  """
  import tensorflow as tf

  keras_batches.check_trainable(model)
  cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
  previous = getattr(model.__dict__.get("make_train_function"), "__self__", None)
  if isinstance(previous, PlacedTraining):
    previous.undo()
  if data is not None and batch_size is not None:
    raise GraphError("data has a batch size of its own; give either data or batch_size")
  specs = None
  if data is not None:
    if isinstance(data, tf.data.Dataset):
      data = next(iter(data.take(1)))
    is_spec = any(isinstance(leaf, tf.TypeSpec) for leaf in tf.nest.flatten(data))
    specs = tuple(data) if is_spec else keras_batches.specs_of(
        keras_batches.as_batch(data, _floatx(model)))
  elif batch_size is not None:
    specs = tuple(keras_models.step_specs(model, batch_size))
  keras_batches.without_xla(model)
  training = PlacedTraining(model, cluster, options)
  if specs is not None:
    training.plan(specs)
  # Past __setattr__, because Keras should not track and save this.
  model.__dict__["make_train_function"] = training.make_train_function
  return training


def _of_first_replica(result: PlacingResult) -> Placement:
  """The devices of what there is once and of the first replica, by the names of one replica."""
  assert result.replication is not None and result.replication.chosen is not None
  chosen = result.replication.chosen
  known = np.flatnonzero(chosen.original_of_op >= 0)
  # What there is once comes last and counts.
  order = known[np.argsort(-chosen.replica_of_op[known], kind="stable")]
  indices = np.zeros(chosen.original.num_ops, dtype=np.int32)
  indices[chosen.original_of_op[order]] = result.indices[order]
  return Placement.from_indices(chosen.original, result.cluster, indices)


def _function_of(graph: ComputationGraph) -> Any:
  """The ConcreteFunction that a graph was read from."""
  assert graph.source is not None
  return graph.source.tf_graph


def _floatx(model: Any) -> str:
  package = keras_models.package_of(model)
  return package.backend.floatx() if hasattr(package.backend, "floatx") else "float32"
