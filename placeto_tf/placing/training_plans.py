"""`TrainingPlan`: a placement of a training step that is found before the step runs.

A plan can be made for devices that this process lacks. It is saved to a file, and then applied by
`compile_step` or `compile_placed` in a process that has the devices.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple, Union

from placeto_tf.clusters import device_names
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import ClusterError, GraphError, PlacementError, counted, listed
from placeto_tf.graphs import ComputationGraph, analysis_graph_def, keras_models, load_graph
from placeto_tf.graphs.tensor_names import copy_of
from placeto_tf.on_use import ConcreteFunction, keras, tf
from placeto_tf.placements import Placement, keras_batches, place_function, traced_steps
from placeto_tf.placements.following import placed_alike
from placeto_tf.placements.keras_batches import KerasStep
from placeto_tf.placements.placed_functions import PlacedFunction
from placeto_tf.placements.traced_steps import FunctionStep, Specs, TracedStep
from placeto_tf.placing import tables
from placeto_tf.placing.config import AUTO, PlacingConfig, as_cluster, check_names
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.observing import observer_of
from placeto_tf.placing.replica_search import replica_counts
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.run import place
from placeto_tf.replication import ReplicaSource, ReplicatedGraph, replicated_costs
from placeto_tf.replication.reloading import check_shapes
from placeto_tf.replication.slicing import table_names
from placeto_tf.simulation import SimulationResult, Simulator, timeline

_ENOUGH = 0.9  # least share of ops with known names in another trace of the same step
_OF_PLACE = ("root_dir", "progress")  # options of `place()` that no `PlacingConfig` has

Found = Union[Placement, "TrainingPlan", str, None]  # the result of an earlier search
Shapes = Sequence[Tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainingPlan:
  """A placed training step that does not run yet; see `plan_training` and `plan_step`.

  Attributes:
    specs: specs of the batch: (inputs, targets) for Keras, (arguments, keyword arguments) for a
      function; TensorSpecs for tensors, and other arguments unchanged.
    shapes: shapes of the tensors of the batch; [] if unknown.
    function: the unplaced step, a ConcreteFunction of the batch's tensors.
    graph, cluster: the placed graph (of the function, or of its replicas), and the devices.
    placement: op name -> device name.
    replicated: the replicas that divide a batch; None for one replica.
    traced: the specs with which the graph to place or replicate was traced.
    result: the result of the search; None for a placement of an earlier search.
  """

  specs: Specs
  shapes: Shapes
  function: ConcreteFunction
  graph: ComputationGraph
  cluster: Cluster
  placement: Placement
  replicated: Optional[ReplicatedGraph]
  traced: Specs
  result: Optional[PlacingResult] = None

  @property
  def replicas(self) -> int:
    """Returns the number of replicas that divide a batch."""
    return 1 if self.replicated is None else self.replicated.replicas

  @property
  def batch_size(self) -> Optional[int]:
    """Returns the examples of a step; None if unknown."""
    return traced_steps.size_of_shapes(self.shapes)

  @property
  def placed_function(self) -> ConcreteFunction:
    """Returns the function to place: the step, or the step with several replicas."""
    return self.graph.origin.tf_graph

  @functools.cached_property
  def costs(self) -> OpCosts:
    """Returns the costs of the placed graph's ops."""
    if self.result is not None:
      return self.result.costs
    return estimate_costs(self.graph, self.cluster) if self.replicated is None else (
        replicated_costs(self.replicated, self.cluster))

  @functools.cached_property
  def simulated(self) -> SimulationResult:
    """Returns the simulated placed step."""
    indices = self.placement.indices(self.graph, self.cluster)
    return Simulator(self.graph, self.costs, self.cluster).simulate(indices)

  @property
  def step_time_us(self) -> float:
    """Returns the simulated time of the placed step."""
    return self.simulated.step_time_us

  @property
  def before_us(self) -> Optional[float]:
    """Returns the simulated time of the unplaced step; None without a search."""
    return None if self.result is None else self.result.baselines["current"].step_time_us

  def save(self, path: str) -> None:
    """Writes the placement, for `placement=path` of `compile_step` or `compile_placed`.

    Raises:
      PlacementError: the file cannot be written.
    """
    dataclasses.replace(self.placement, step_time_us=self.step_time_us).save(path)

  def apply(self) -> PlacedFunction:
    """Moves the variables to their devices; returns the placed step."""
    return place_function(self.placement, self.placed_function)

  def write_timeline(self, path: str) -> None:
    """Writes the simulated step as a Chrome trace, which opens in Perfetto."""
    timeline.write_timeline(self.graph, self.costs, self.simulated, path)

  @property
  def text(self) -> str:
    """Returns the simulated step times, the replicas and the devices in a line."""
    before = "" if self.before_us is None else f" instead of {ms_text(self.before_us)}"
    small = "" if self.result is None else self.result.small_step
    return (f"{ms_text(self.step_time_us)} a step{before}, simulated{small and f', {small}'}; "
            f"{counted(self.replicas, 'replica')}, {counted(self.graph.num_ops, 'op')} on "
            f"{short_names(self.cluster)}")

  def __repr__(self) -> str:
    return f"TrainingPlan({self.text})"

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
    TypeError: `place()` has no such option.
  """
  check_options(options)
  step = KerasStep(model)
  step.wide = step.wide and not is_divided(options)
  example = keras_batches.read_example(step, batch_size, data)
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
    TypeError: `place()` has no such option.
  """
  check_options(options)
  step = FunctionStep(train_step, input_signature, batch_size)
  return search(step, *read_arguments(step, args, kwargs), as_cluster(cluster), options)


def read_arguments(
    step: FunctionStep, args: Sequence[Any], kwargs: Optional[Mapping[str, Any]],
) -> Tuple[Specs, Shapes]:
  """Reads example arguments of a step.

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
  return step.specs(batch), traced_steps.component_shapes(batch)


def check_options(options: Mapping[str, Any]) -> None:
  """Checks options of `place()` before a step is traced, which may take minutes.

  Raises:
    TypeError: `place()` has no such option.
    PlacementError: an option has a wrong value.
  """
  check_names(options, _OF_PLACE, "; an example keyword argument of the step goes in "
                                  "kwargs={{{name!r}: ...}}")
  PlacingConfig(**{name: value for name, value in options.items() if name not in _OF_PLACE})


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
  observer = observer_of(options.get("progress"))
  with observer.stage("Tracing the training step"):
    function, traced = step.trace(specs), specs
    graph = graph_of(step, function, shapes)
  source: Union[ComputationGraph, ReplicaSource] = graph
  batch_norm = options.get("batch_norm", "replica")
  if not isinstance(step, KerasStep):
    if options.get("slices", AUTO) not in (1, AUTO) or options.get("mirrored_variables"):
      raise GraphError("tables are split and variables mirrored in training of Keras models and "
                       "in graphs; leave out slices and mirrored_variables for a step of your own")
    # Nothing tells when the program reads or writes its variables.
    options = {**options, "slices": 1, "mirrored_variables": False}
  if is_divided(options):
    counts = [count for count, _ in replica_counts(
        cluster, options.get("replicas", 1))[0][1:]] or [1]
    source, traced = replica_source(step, graph, specs, shapes, counts, batch_norm)
  result = place(source, cluster, **{**options, "progress": observer})
  # `follow` makes the same replicas again.
  placement = dataclasses.replace(
      result.placement, replicas=result.placement.replicas or 1,
      options={**result.placement.options, "batch_norm": batch_norm, **({} if (
          result.replicated is None) else {
              "mirrored_variables": result.replicated.mirrored,
              # By order, because names differ slightly between traces.
              "slices": [source.slices_of(result.replicated).get(name, 1)  # type: ignore[union-attr]
                         for name in table_names(graph)] if result.replicated.slices else []})})
  return TrainingPlan(
      specs, shapes, function, result.graph, cluster, placement, result.replicated, traced, result)


def follow(
    step: TracedStep, specs: Specs, shapes: Shapes, cluster: Cluster, placement: Placement, *,
    function: Optional[ConcreteFunction] = None, keep_variables: bool = False,
) -> TrainingPlan:
  """Makes the plan of an earlier placement, of another batch or perhaps of another process.

  Args:
    step, specs, shapes, cluster: see `search`.
    placement: a placement of the same step.
    function: a trace of the step for such batches; by default a new one.
    keep_variables: whether variables keep their present devices instead of the placement's.

  Raises:
    GraphError: the step cannot be traced, or its batch cannot be divided.
    PlacementError: the placement is for another step or for other devices.
  """
  function = step.trace(specs) if function is None else function
  made, replicas, traced = None, placement.replicas or 1, specs
  graph = graph_of(step, function, shapes)
  # Make the replicas again, with the names in the placement.
  counts = placement.options.get("slices", ())
  if replicas > 1 or counts:
    source, traced = replica_source(
        step, graph, specs, shapes, [replicas], placement.options.get("batch_norm", "replica"))
    made = source.replicas(
        replicas, bool(placement.options.get("mirrored_variables")), cluster, slices={
            name: count for name, count in zip(table_names(graph), counts) if count > 1})
    graph = made.graph
  # Devices of the placement that the cluster lacks, under any name.
  missing = sorted(
      device for device, i in device_names.match(
          set(placement.values()), cluster.device_names).items() if i is None)
  if missing:
    raise PlacementError(
        f"the placement uses {listed(missing)}, expected devices of the cluster, "
        f"{', '.join(cluster.device_names)}; give the cluster that it was made for")
  # Names of ops differ slightly between traces; most of them must be in the placement.
  found, known = placed_alike(
      placement, graph, graph.origin.tf_graph, cluster, keep_variables=keep_variables)
  if known < _ENOUGH:
    raise PlacementError(
        f"the placement knows {known:.0%} of the {counted(graph.num_ops, 'op')} of the training "
        f"step of {step.name!r}; it is of another model, or one compiled otherwise: plan it again")
  found = dataclasses.replace(
      found, replicas=placement.replicas, method=placement.method, options=placement.options)
  return TrainingPlan(specs, shapes, function, graph, cluster, found, made, traced)


def replica_source(
    step: TracedStep, whole: ComputationGraph, specs: Specs, shapes: Shapes, counts: Sequence[int],
    batch_norm: str) -> Tuple[ReplicaSource, Specs]:
  """Makes the source of replicas that divide a step's batch; the batch never grows.

  The step is traced with an unknown batch size, or with the batch size of one replica. If its code
  contains the batch size, the fixed shapes of the trace are rewritten.

  Args:
    step, specs, shapes: see `search`.
    whole: the graph of the step, traced with these specs.
    counts: numbers of replicas, at least one of which must divide the batch.
    batch_norm: see `replicate`.

  Returns:
    The source, and the specs with which the graph of one replica was traced. If no number divides
    the batch, the source raises an error for every number of replicas.
  """
  size = traced_steps.size_of_shapes(shapes)
  problems: List[GraphError] = []
  # (specs of the trace, function that makes the graph of one of R replicas, or None)
  ways: List[Tuple[Specs, Optional[Callable[[int], ComputationGraph]]]] = [
      (traced_steps.with_batch(specs, size, None), None),
      (specs, functools.partial(_part_of, step, specs, size)), (specs, None)]
  # The step of a Keras model is traced for one size, like `fit` does; no user code fixes a size.
  if isinstance(step, KerasStep):
    ways = [ways[1], ways[0], ways[2]]
  for traced, part in ways:
    for count in counts:
      try:
        traced_steps.check_divides(size, count)
        source = ReplicaSource(
            whole if traced is specs else graph_of(step, step.trace(traced), shapes), part=part,
            batch_norm=batch_norm, keeps_copies=isinstance(step, KerasStep))
        # The trace of an unknown batch size may contain the whole batch's size.
        check_shapes(analysis_graph_def(source.part(count)))
        # If the batch grows, it is not divided.
        if source.replicas(count).global_batch == size:
          return source, traced
      except Exception as error:  # the user's code may raise anything
        problems.append(error if isinstance(error, GraphError) else GraphError(
            f"the step {step.name!r} cannot be divided among {count} replicas "
            f"({keras_models.cause_of(error)}); the batch is {size}, the most frequent first "
            "dimension of its arguments: put the batch first in all of them, leave its size out of "
            "the code, or train with one replica"))
  problems.append(GraphError(
      f"the step {step.name!r} has fixed shapes that do not divide; leave the batch size out of "
      "its code, or train with one replica"))

  def refused(count: int) -> ComputationGraph:
    raise problems[0]

  return ReplicaSource(whole, part=refused, batch_norm=batch_norm), specs


def _part_of(
    step: TracedStep, specs: Specs, size: Optional[int], replicas: int) -> ComputationGraph:
  """Traces the step of one of R replicas, with a share of the batch, and returns the graph.

  Raises:
    GraphError: R does not divide the batch, or the step takes no smaller batch.
  """
  # Specs with the batch dimension divided by the number of replicas.
  part = traced_steps.divided(specs, size, replicas)
  try:
    return load_graph(step.trace(part))
  except GraphError as problem:
    raise GraphError(
        f"{step.name!r} takes batches of {size} examples, but no share of them, which each of "
        f"{replicas} replicas would have: it or a layer states the batch size, as stateful layers "
        "do; leave it out of them, or train with one replica") from problem


def is_divided(options: Mapping[str, Any]) -> bool:
  """Returns whether options of `place()` ask for more than one replica, or for slices."""
  return options.get("replicas", 1) != 1 or options.get("slices", AUTO) not in (1, AUTO)


def loaded(placement: Found, options: Mapping[str, Any]) -> Optional[Placement]:
  """Returns an earlier placement, read from its file if it is a path.

  Args:
    placement: see `compile_step`.
    options: of a search, which must not be given besides a placement.

  Returns:
    The placement, or None.

  Raises:
    PlacementError: the placement cannot be read, or options are given, too.
  """
  if placement is not None and options:
    raise PlacementError(
        f"a placement that was found before is not searched for; leave out {', '.join(options)}"
        + ("; for other devices search again, with plan_training or plan_step for a cluster of "
           "them, such as 'cpu:4'" if "device_map" in options else ""))
  if isinstance(placement, TrainingPlan):
    return placement.placement
  if placement is None or isinstance(placement, Placement):
    return placement
  return Placement.load(os.fspath(placement))


def check_devices(cluster: Cluster) -> None:
  """Raises ClusterError where this process lacks a device of a cluster."""
  present = [device.name for device in tf.config.list_logical_devices()]
  # Compare canonical names.
  if any(device_names.find_device(present, name) is None for name in cluster.device_names):
    here = ", ".join(device_names.short_name(name) for name in present)
    raise ClusterError(
        f"the step is to be placed for {short_names(cluster)}, but this process has {here}; load "
        "it in a process with those devices, give \"local\" and no placement= to search for "
        "these, or plan for devices elsewhere with placeto_tf.plan_training or plan_step")


def short_names(cluster: Cluster) -> str:
  """Returns a text with the first devices of a cluster, and the number of further devices."""
  return listed([device_names.short_name(name) for name in cluster.device_names], most=8)


def graph_of(step: TracedStep, function: ConcreteFunction, shapes: Shapes) -> ComputationGraph:
  """Reads the graph of a trace of a step.

  Args:
    step, function: the step, and its trace.
    shapes: shapes of a batch's tensors, for arguments with unknown dimensions in the trace.
  """
  # Only unknown dimensions need a shape; a None in the given shape is unknown, too.
  feeds = {tensor.name: shape for tensor, shape in zip(function.inputs, shapes)
           if not tensor.shape.is_fully_defined() and None not in shape}
  return load_graph(function, feed_shapes=feeds or None, batch_size=step.batch_size)


def of_first_replica(placement: Placement) -> Placement:
  """Returns the devices for a whole batch: of ops that replicas share, and of replica 0."""
  return dataclasses.replace(placement, replicas=1, op_devices={
      copy[1] if (copy := copy_of(op)) and copy[0] == 0 else op: device
      for op, device in placement.items()})
