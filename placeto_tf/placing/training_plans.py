"""`TrainingPlan`: a placement of a training step that is found before the step runs.

A plan can be made for devices that this process lacks. It is saved to a file, and then applied by
`compile_step` or `compile_placed` in a process that has the devices.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from placeto_tf.clusters import device_names
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import ClusterError, GraphError, PlacementError, listed
from placeto_tf.graphs import ComputationGraph, analysis_graph_def, keras_models, load_graph
from placeto_tf.placements import Placement, keras_batches
from placeto_tf.placements.applied import AppliedFunction, apply_checked
from placeto_tf.placements.following import placed_alike
from placeto_tf.placements.keras_batches import KerasStep
from placeto_tf.placements.traced_steps import (
  FunctionStep,
  Specs,
  TracedStep,
  check_divides,
  component_shapes,
  divided,
  open_batch,
  size_of,
  size_of_shapes,
)
from placeto_tf.placing import tables
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.run import place
from placeto_tf.replication import ReplicaSource, ReplicatedGraph, replicated_costs
from placeto_tf.replication.reloading import check_shapes
from placeto_tf.simulation import Simulator

if TYPE_CHECKING:
  import keras
  from tensorflow.types.experimental import ConcreteFunction

ENOUGH = 0.9  # least share of ops with known names in another trace of the same step

Shapes = Sequence[Tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainingPlan:
  """A placed training step that does not run yet; see `plan_training` and `plan_step`.

  Attributes:
    specs: specs of the batch: (inputs, targets) for Keras, (arguments, keyword arguments) for a
      function; TensorSpecs for tensors, and other arguments unchanged.
    shapes: shapes of the tensors of the batch; [] if unknown.
    function: the unplaced step, a ConcreteFunction of the batch's tensors.
    placed_function: the function to place: the same function, or the function with several
      replicas.
    graph, costs, cluster: the placed graph, its costs, and the devices.
    placement: op name -> device name.
    replicated: the replicas that divide a batch; None for one replica.
    traced: the specs with which the graph to place or replicate was traced.
    step_time_us: simulated step time.
    before_us: simulated time of the unplaced step; None if not simulated.
    result: the result of the search; None for a loaded placement.
  """

  specs: Specs
  shapes: Shapes
  function: ConcreteFunction
  placed_function: ConcreteFunction
  graph: ComputationGraph
  costs: OpCosts
  cluster: Cluster
  placement: Placement
  replicated: Optional[ReplicatedGraph]
  traced: Specs
  step_time_us: float
  before_us: Optional[float] = None
  result: Optional[PlacingResult] = None

  @property
  def replicas(self) -> int:
    """Returns the number of replicas that divide a batch."""
    return 1 if self.replicated is None else self.replicated.replicas

  @property
  def batch_size(self) -> Optional[int]:
    """Returns the examples of a step; None if unknown."""
    return size_of_shapes(self.shapes)

  def save(self, path: str) -> None:
    """Writes the placement, for `placement=path` of `compile_step` or `compile_placed`.

    Raises:
      PlacementError: the file cannot be written.
    """
    self.placement.save(path)

  def apply(self) -> AppliedFunction:
    """Moves the variables to their devices; returns the placed step."""
    return apply_checked(
        self.placement, self.placed_function, self.graph, self.costs, self.cluster,
        promised_us=self.step_time_us, before_us=self.before_us)

  def write_timeline(self, path: str) -> None:
    """Writes the simulated step as a Chrome trace, which opens in Perfetto."""
    from placeto_tf.simulation import timeline

    indices = self.placement.indices(self.graph, self.cluster)
    timeline.write_timeline(
        self.graph, self.costs, Simulator(self.graph, self.costs, self.cluster).simulate(indices),
        path)

  def __repr__(self) -> str:
    before = "" if self.before_us is None else f" instead of {ms_text(self.before_us)}"
    return (f"TrainingPlan({ms_text(self.step_time_us)} a step{before}, simulated; "
            f"{self.replicas} replica{'s' * (self.replicas > 1)}, {self.graph.num_ops:,} ops on "
            f"{short_names(self.cluster)})")

  def __str__(self) -> str:
    return repr(self) if self.result is None else tables.table(self.result)

  def _repr_html_(self) -> Optional[str]:
    """Returns the table and the timeline of the search, for a notebook."""
    return None if self.result is None else self.result._repr_html_()


def plan_training(
    model: keras.Model,
    cluster: Union[Cluster, str],
    *,
    batch_size: Optional[int] = None,
    data: Any = None,
    **options: Any,
) -> TrainingPlan:
  """Places the training step of a compiled Keras model; this process may lack the devices.

  No values of the model change. The optimizer's variables are created, as `fit` would.

  Args:
    model, batch_size, data: as for `compile_placed`; one of the two is needed.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    **options: of `place()`: method, max_seconds, max_evaluations, seed, replicas, ...

  Returns:
    The plan. It can be printed and saved: `plan.save("plan.json")`, and in a process that has the
    devices `compile_placed(model, placement="plan.json")`.

  Raises:
    PlacetoError: the model is not compiled, its step cannot be traced or placed, or nothing fits.
  """
  keras_batches.check_trainable(model)
  step = KerasStep(model)
  example = keras_batches.read_example(
      step, batch_size, data, wide=step.wide and not is_divided(options))
  if example is None:
    raise GraphError(
        "a plan needs to know the batches; give batch_size=, or data=, an example batch")
  return search(step, *example, as_cluster(cluster), options)


def plan_step(
    train_step: Callable,
    cluster: Union[Cluster, str],
    *,
    args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None,
    input_signature: Optional[Sequence[Any]] = None,
    batch_size: Optional[int] = None,
    **options: Any,
) -> TrainingPlan:
  """Places a custom training step; this process may lack the devices.

  The step is traced and not run. Values of its variables do not change; variables that the step
  creates in its first call are created.

  Args:
    train_step, args, kwargs, input_signature, batch_size: as for `compile_step`.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    **options: of `place()`: method, max_seconds, max_evaluations, seed, replicas, ...

  Returns:
    The plan. It can be printed and saved: `plan.save("plan.json")`, and in a process that has the
    devices `compile_step(train_step, placement="plan.json")`.

  Raises:
    PlacetoError: the step cannot be traced or placed, or nothing fits.
  """
  step = FunctionStep(train_step, input_signature, batch_size)
  return search(step, *read_arguments(step, args, kwargs), as_cluster(cluster), options)


def read_arguments(
    step: FunctionStep, args: Sequence[Any], kwargs: Optional[Mapping[str, Any]],
) -> Tuple[Specs, Shapes]:
  """Reads example arguments of a step.

  Args:
    step: the step.
    args, kwargs: of a call.

  Returns:
    (specs, shapes of the tensors, [] if they are not known).

  Raises:
    GraphError: the step does not take these arguments.
  """
  try:
    batch = step.batch(args, kwargs or {})
  except TypeError as error:
    raise GraphError(
        f"the step {step.name!r} does not take these arguments ({error}); give args=, the "
        "arguments of one call, in a tuple") from None
  return step.specs(batch), component_shapes(batch)


def search(
    step: TracedStep, specs: Specs, shapes: Shapes, cluster: Cluster, options: Mapping[str, Any],
) -> TrainingPlan:
  """Searches a placement for batches of these specs, and returns the plan.

  Args:
    step: the training step.
    specs: see `TrainingPlan`.
    shapes: shapes of the components of a batch, in their order, for dimensions that specs leave
      open.
    cluster: devices and links.
    options: of `place()`.

  Returns:
    The plan, with the result of the search.

  Raises:
    PlacetoError: the step cannot be traced or placed, or nothing fits.
  """
  function = step.trace(specs)
  graph: Union[ComputationGraph, ReplicaSource] = graph_of(step, function, shapes)
  traced = specs
  if is_divided(options):
    graph, traced = replica_source(
        step, specs, shapes, counts_of(options["replicas"], cluster),
        batch_norm=options.get("batch_norm", "replica"))
  # A `ReplicaSource` if the batch may be divided, else the graph itself.
  result = place(graph, cluster, **options)
  made = None if result.replication is None else result.replication.chosen
  made = None if made is None or made.replicas == 1 else made
  # Simulate the unplaced step, for the verdict before a trial.
  current = result.baselines.get("current")
  return TrainingPlan(
      specs, shapes, function, function_of(result.graph), result.graph, result.costs, cluster,
      dataclasses.replace(result.placement, replicas=1 if made is None else made.replicas), made,
      traced, result.step_time_us, None if current is None else current.step_time_us, result)


def follow(
    step: TracedStep, specs: Specs, shapes: Shapes, cluster: Cluster, placement: Placement,
) -> TrainingPlan:
  """Makes the plan of an earlier placement, perhaps from another process.

  Args:
    step, specs, shapes, cluster: see `search`.
    placement: a placement of the same step.

  Returns:
    The plan, with its simulated step time.

  Raises:
    PlacementError: the placement is for another step or for other devices.
  """
  function = step.trace(specs)
  made, replicas, traced = None, placement.replicas or 1, specs
  # Make the replicas again, with the names in the placement.
  if replicas > 1:
    source, traced = replica_source(step, specs, shapes, [replicas])
    made = source.replicas(replicas)
    placed, graph, costs = function_of(made.graph), made.graph, replicated_costs(made, cluster)
  else:
    placed, graph = function, graph_of(step, function, shapes)
    costs = estimate_costs(graph, cluster)
  # Devices of the placement that the cluster lacks, under any name.
  missing = sorted(
      device for device, i in device_names.match(
          set(placement.values()), cluster.device_names).items() if i is None)
  if missing:
    raise PlacementError(
        f"the placement uses {listed(missing)}, expected devices of the cluster, "
        f"{', '.join(cluster.device_names)}; give the cluster that it was made for")
  # Names of ops differ slightly between traces; most of them must be in the placement.
  found, known = placed_alike(placement, graph, placed, cluster, keep_variables=False)
  if known < ENOUGH:
    raise PlacementError(
        f"the placement knows {known:.0%} of the {graph.num_ops:,} ops of the training step of "
        f"{step.name!r}; it is of another model, or one compiled otherwise: plan it again")
  simulator = Simulator(graph, costs, cluster)
  # Simulate again, because the file may have been made with other costs.
  step_us = simulator.simulate(found.indices(graph, cluster)).step_time_us
  return TrainingPlan(
      specs, shapes, function, placed, graph, costs, cluster,
      dataclasses.replace(
          found, replicas=placement.replicas, step_time_us=step_us, method=placement.method), made,
      traced, step_us)


def replica_source(
    step: TracedStep, specs: Specs, shapes: Shapes, counts: Sequence[int],
    batch_norm: str = "replica") -> Tuple[ReplicaSource, Specs]:
  """Makes the source of replicas that divide a step's batch; the batch never grows.

  The step is traced with an unknown batch size, or with the batch size of one replica. If its code
  contains the batch size, the fixed shapes of the trace are rewritten.

  Args:
    step, specs, shapes: see `search`.
    counts: numbers of replicas, at least one of which must divide the batch.
    batch_norm: see `replicate`.

  Returns:
    The source, and the specs with which the graph of one replica was traced. If no number divides
    the batch, the source raises an error for every number of replicas.

  Raises:
    GraphError: the step cannot be traced.
  """
  size = size_of_shapes(shapes)
  problems: List[GraphError] = []

  def retraced() -> Tuple[ReplicaSource, Specs]:
    # A trace for the global batch, and another trace for the part of one replica.
    whole = graph_of(step, step.trace(specs), shapes)
    return ReplicaSource(
        whole, part=lambda count: _part_of(step, specs, count), batch_norm=batch_norm), specs

  def with_open_batch() -> Tuple[ReplicaSource, Specs]:
    # A single trace with an unknown batch size, unless the code contains the size.
    wide = open_batch(specs, size)
    source = ReplicaSource(graph_of(step, step.trace(wide), shapes), batch_norm=batch_norm)
    try:
      check_shapes(analysis_graph_def(source.part(count)))
    except ValueError as error:
      raise GraphError(
          f"the step {step.name!r} states the batch size ({keras_models.cause_of(error)}); leave "
          "it out of its code, or train with one replica") from error
    return source, wide

  def rewritten() -> Tuple[ReplicaSource, Specs]:
    return ReplicaSource(
        graph_of(step, step.trace(specs), shapes), batch_norm=batch_norm), specs

  # The step of a Keras model is traced for one size, like `fit` does; no user code fixes a size.
  ways = [retraced, with_open_batch, rewritten] if isinstance(step, KerasStep) else [
      with_open_batch, retraced, rewritten]
  for way in ways:
    for count in counts:
      try:
        check_divides(size, count)
        source, traced = way()
        # If the batch grows, it is not divided.
        if source.replicas(count).global_batch == size:
          return source, traced
      except GraphError as error:
        problems.append(error)
      except Exception as error:  # the user's code may raise anything
        problems.append(GraphError(
            f"the step {step.name!r} cannot be divided among {count} replicas "
            f"({keras_models.cause_of(error)}); train with one replica"))
  said = problems[0] if problems else GraphError(
      f"the step {step.name!r} has fixed shapes that do not divide; leave the batch size out of "
      "its code, or train with one replica")

  def refused(count: int) -> ComputationGraph:
    raise said

  return ReplicaSource(
      graph_of(step, step.trace(specs), shapes), part=refused, batch_norm=batch_norm), specs


def _part_of(step: TracedStep, specs: Specs, replicas: int) -> ComputationGraph:
  """Returns the graph of one of R replicas, after the whole batch was traced.

  Raises:
    GraphError: R does not divide the batch, or the step takes no smaller batch.
  """
  # Specs with the batch dimension divided by the number of replicas.
  part = divided(specs, replicas)
  try:
    return load_graph(step.trace(part))
  except GraphError as problem:
    raise GraphError(
        f"{step.name!r} takes batches of {size_of(specs)} examples, but none of {size_of(part)}, "
        f"which each of {replicas} replicas would have: it or a layer states the batch size, as "
        "stateful layers do; leave it out of them, or train with one replica") from problem


def counts_of(replicas: Union[int, str], cluster: Cluster) -> Sequence[int]:
  """Returns numbers of replicas, fewest first; one of them must be possible.

  Args:
    replicas: the option of `place()`.
    cluster: the devices.

  Returns:
    The requested number, or the divisors of the number of devices, from 2 on.
  """
  if isinstance(replicas, int):
    return [replicas]
  devices = sum(not device.host for device in cluster.devices) or cluster.num_devices
  return [count for count in range(2, devices + 1) if devices % count == 0]


def is_divided(options: Mapping[str, Any]) -> bool:
  """Returns whether options of `place()` ask for more than one replica."""
  return options.get("replicas", 1) != 1


def as_cluster(
    cluster: Union[Cluster, str, None], placement: Optional[Placement] = None) -> Cluster:
  """Returns the given cluster, or the cluster of the placement.

  Args:
    cluster: a `Cluster`, text for `Cluster.parse`, or None.
    placement: an earlier placement, or None.

  Returns:
    The cluster.

  Raises:
    ClusterError: neither is given.
  """
  if cluster is not None:
    return cluster if isinstance(cluster, Cluster) else Cluster.parse(cluster)
  if placement is None or placement.cluster is None:
    raise ClusterError(
        "no cluster is given; name this process's devices with \"local\", or others, such as "
        "\"v100:4\"")
  return Cluster.from_json(placement.cluster)


def check_devices(cluster: Cluster) -> None:
  """Raises ClusterError where this process lacks a device of the cluster."""
  import tensorflow as tf

  present = [device.name for device in tf.config.list_logical_devices()]
  # Compare canonical names.
  absent = [name for name in cluster.device_names
            if device_names.find_device(present, name) is None]
  if absent:
    here = ", ".join(device_names.short_name(name) for name in present)
    raise ClusterError(
        f"this process has {here}, but not {listed(absent)}; place on its own devices with "
        "\"local\", or plan for devices elsewhere with placeto_tf.plan_training or plan_step")


def function_of(graph: ComputationGraph) -> ConcreteFunction:
  """Returns the ConcreteFunction that a graph was read from."""
  assert graph.source is not None
  return graph.source.tf_graph


def short_names(cluster: Cluster) -> str:
  """Returns a text with the first devices of a cluster, and the number of further devices."""
  return listed([device_names.short_name(name) for name in cluster.device_names], most=8)


def graph_of(step: TracedStep, function: ConcreteFunction, shapes: Shapes) -> ComputationGraph:
  """Reads the graph of a trace of a step.

  Args:
    step, function: the step, and its trace.
    shapes: shapes of a batch's tensors, for arguments with unknown dimensions in the trace.

  Returns:
    The graph.
  """
  # Only unknown dimensions need a shape; a None in the given shape is unknown, too.
  feeds = {tensor.name: shape for tensor, shape in zip(function.inputs, shapes)
           if not tensor.shape.is_fully_defined() and None not in shape}
  return load_graph(function, feed_shapes=feeds or None, batch_size=step.batch_size)


def of_first_replica(plan: TrainingPlan) -> Placement:
  """Returns op of the unreplicated graph -> device of the shared op, or of replica 0's copy."""
  made, indices = plan.replicated, plan.placement.indices(plan.graph, plan.cluster)
  assert made is not None
  known = np.flatnonzero(made.original_of_op >= 0)
  # Shared ops come last and count.
  order = known[np.argsort(-made.replica_of_op[known], kind="stable")]
  found = np.zeros(made.original.num_ops, dtype=np.int32)
  # Later entries overwrite earlier ones, so replica R - 1 comes first and shared ops come last.
  found[made.original_of_op[order]] = indices[order]
  return Placement.from_indices(made.original, plan.cluster, found)
