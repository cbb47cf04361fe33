"""`TrainingPlan`: where the ops of a Keras model's training step run, found before they run there.

A plan is searched for devices that this process has or lacks, is saved, and is carried out by
`compile_placed` in a process that has the devices.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from placeto_tf.clusters import device_names
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import ClusterError, GraphError, PlacementError, listed
from placeto_tf.graphs import ComputationGraph, keras_models, load_graph
from placeto_tf.placements import Placement, coverage, keras_batches
from placeto_tf.placements.applied import AppliedFunction, apply_checked
from placeto_tf.placements.following import placed_alike
from placeto_tf.placements.keras_batches import Specs
from placeto_tf.placing import tables
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.run import place
from placeto_tf.replication import (
  ReplicaSource,
  ReplicatedGraph,
  replicate,
  replicated_costs,
)
from placeto_tf.simulation import Simulator

if TYPE_CHECKING:
  import keras
  from tensorflow.types.experimental import ConcreteFunction

_NUMBER = re.compile(r"_?\d+")
_FREE = 32  # stands in an error for a dimension that is not known
ENOUGH = 0.9  # least share of ops known by name for a trace of the same step


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainingPlan:
  """A placed training step that does not run yet; see `plan_training`.

  Attributes:
    specs: of the batch: (inputs, targets), as TensorSpecs.
    shapes: of the tensors of the batch that was planned for; [] where they are not known.
    function: the step as Keras runs it, a ConcreteFunction.
    placed_function: what the placement is of: the same, or that of several replicas.
    graph, costs, cluster: what was placed, and where.
    placement: op name -> device name.
    replicated: the replicas among which a batch is divided; None for one.
    step_time_us: simulated.
    before_us: of the step as it is, simulated; None where it was not.
    result: of the search; None for a placement that was loaded.
  """

  specs: Specs
  shapes: Sequence[Tuple[int, ...]]
  function: ConcreteFunction
  placed_function: ConcreteFunction
  graph: ComputationGraph
  costs: OpCosts
  cluster: Cluster
  placement: Placement
  replicated: Optional[ReplicatedGraph]
  step_time_us: float
  before_us: Optional[float] = None
  result: Optional[PlacingResult] = None

  @property
  def replicas(self) -> int:
    """Among how many a batch is divided."""
    return 1 if self.replicated is None else self.replicated.replicas

  @property
  def batch_size(self) -> Optional[int]:
    """Examples of a step; None where that is not known."""
    return next((shape[0] for shape in self.shapes if shape), None)

  def save(self, path: str) -> None:
    """Writes the placement, for `compile_placed(model, placement=path)` in any process.

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
    if self.result is None:
      return repr(self)
    return tables.table(self.result)

  def _repr_html_(self) -> Optional[str]:
    """What a notebook shows: the table and the timeline of what was searched."""
    return None if self.result is None else self.result._repr_html_()


def plan_training(
    model: keras.Model,
    cluster: Union[Cluster, str],
    *,
    batch_size: Optional[int] = None,
    data: Any = None,
    **options: Any,
) -> TrainingPlan:
  """Places the training step of a compiled Keras model on devices that need not be here.

  Values of the model stay as they are; the optimizer's variables are made, as `fit` would.

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
  cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
  example = read_example(model, batch_size, data, wide=is_wide(model, options))
  if example is None:
    raise GraphError(
        "a plan needs to know the batches; give batch_size=, or data=, an example batch")
  return search(model, *example, cluster, options)


def search(
    model: keras.Model, specs: Specs, shapes: Sequence[Tuple[int, ...]], cluster: Cluster,
    options: Dict[str, Any]) -> TrainingPlan:
  """Searches a plan for batches of these specs.

  Args:
    specs: see `TrainingPlan`.
    shapes: of the components of a batch, in their order, where the specs leave dimensions open.
    options: of `place()`.
  """
  function = keras_batches.trace_step(model, specs)
  graph: Union[ComputationGraph, ReplicaSource] = _graph_of(function, shapes)
  if is_divided(options):
    graph = ReplicaSource(
        graph, part=lambda count: part_of(model, specs, count),
        batch_norm=options.get("batch_norm", "replica"))
  result = place(graph, cluster, **options)
  made = None if result.replication is None else result.replication.chosen
  made = None if made is None or made.replicas == 1 else made
  current = result.baselines.get("current")
  return TrainingPlan(
      specs, shapes, function, function if made is None else function_of(result.graph),
      result.graph, result.costs, cluster,
      dataclasses.replace(result.placement, replicas=1 if made is None else made.replicas), made,
      result.step_time_us, None if current is None else current.step_time_us, result)


def follow(
    model: keras.Model, specs: Specs, shapes: Sequence[Tuple[int, ...]], cluster: Cluster,
    placement: Placement) -> TrainingPlan:
  """The plan of a placement that was found before, perhaps in another process.

  Raises:
    PlacementError: it is of another step, or for other devices.
  """
  function = keras_batches.trace_step(model, specs)
  whole = _graph_of(function, shapes)
  made, replicas = None, placement.replicas or 1
  if replicas > 1:
    made = replicate(part_of(model, specs, replicas), replicas, whole=whole)
    placed, graph, costs = function_of(made.graph), made.graph, replicated_costs(made, cluster)
  else:
    placed, graph, costs = function, whole, estimate_costs(whole, cluster)
  missing = sorted(
      device for device, i in device_names.match(
          set(placement.values()), cluster.device_names).items() if i is None)
  if missing:
    raise PlacementError(
        f"the placement uses {listed(missing)}, expected devices of the cluster, "
        f"{', '.join(cluster.device_names)}; give the cluster that it was made for")
  found, known = placed_alike(
      _renamed(placement, graph), graph, placed, cluster, variables_stay=False)
  if known < ENOUGH:
    raise PlacementError(
        f"the placement knows {known:.0%} of the {graph.num_ops:,} ops of the training step of "
        f"{getattr(model, 'name', '')!r}; it is of another model, or one compiled otherwise: plan "
        "it again")
  simulator = Simulator(graph, costs, cluster)
  step_us = simulator.simulate(found.indices(graph, cluster)).step_time_us
  return TrainingPlan(
      specs, shapes, function, placed, graph, costs, cluster,
      dataclasses.replace(
          found, replicas=placement.replicas, step_time_us=step_us, method=placement.method), made,
      step_us)


def _renamed(placement: Placement, graph: ComputationGraph) -> Placement:
  """The placement by the names of a graph that differs in the numbers within names alone.

  Keras numbers its layers through the process: dense_1 of one model is dense_4 of the next.
  """
  ops = coverage.file_op_names(graph)
  pairs = list(zip(placement, ops))
  if len(ops) != len(placement) or any(_NUMBER.sub("", a) != _NUMBER.sub("", b) for a, b in pairs):
    return placement
  return dataclasses.replace(placement, op_devices={new: placement[old] for old, new in pairs})


def part_of(model: keras.Model, specs: Specs, replicas: int) -> ComputationGraph:
  """Returns the step of one of R replicas of a batch, whose whole was traced before.

  Raises:
    GraphError: the batch does not divide, or the model takes no smaller one.
  """
  part = keras_batches.divided(specs, replicas)
  try:
    return load_graph(keras_batches.trace_step(model, part))
  except GraphError as problem:
    raise GraphError(
        f"the model takes batches of {keras_batches.size_of(specs)} examples, but none of "
        f"{keras_batches.size_of(part)}, which each of {replicas} replicas would have: its layers "
        "or its train_step state the batch size, as stateful layers do; leave it out of them, or "
        "train with one replica") from problem


def is_divided(options: Mapping[str, Any]) -> bool:
  """Whether options of `place()` ask for more replicas than one."""
  return options.get("replicas", 1) != 1


def is_wide(model: keras.Model, options: Mapping[str, Any]) -> bool:
  """Whether one trace of the step is for batches of any size."""
  return keras_batches.draws_by_trace(model) and not is_divided(options)


def read_example(
    model: keras.Model, batch_size: Optional[int], data: Any, *, wide: bool = False,
) -> Optional[Tuple[Specs, Sequence[Tuple[int, ...]]]]:
  """What a user says of the batches: (specs, shapes of the tensors); None without a word.

  Args:
    model, batch_size, data: as for `compile_placed`.
    wide: whether the specs leave the batch size open.

  Raises:
    GraphError: both are given, or what is given does not say all.
  """
  import tensorflow as tf

  if data is None and batch_size is None:
    return None
  if data is not None and batch_size is not None:
    raise GraphError("data has a batch size of its own; give either data or batch_size")
  if batch_size is not None:
    specs = tuple(keras_models.step_specs(model, batch_size))
    shapes = [spec.shape.as_list() for spec in tf.nest.flatten(specs)]
    if any(None in shape for shape in shapes):
      raise GraphError(
          f"the batches of the Keras model {getattr(model, 'name', '')!r} have dimensions that "
          "batch_size does not say; give data=, an example batch, or its specs: with your sizes "
          f"for {_FREE}, and targets as your loss takes them, data={_as_code(specs)}")
    return (tuple(keras_models.step_specs(model, None)) if wide else specs), shapes
  element_spec = None
  if isinstance(data, tf.data.Dataset):
    element_spec, data = data.element_spec, next(iter(data.take(1)))
  if any(isinstance(leaf, tf.TypeSpec) for leaf in tf.nest.flatten(data)):
    found = [spec.shape for spec in tf.nest.flatten(data, expand_composites=True)]
    known = all(shape.is_fully_defined() for shape in found)
    return tuple(data), [shape.as_list() for shape in found] if known else []
  batch = keras_batches.as_batch(data, floatx(model))
  return (keras_batches.specs_of(batch, data, element_spec, wide=wide),
          keras_batches.component_shapes(batch))


def _as_code(specs: Specs) -> str:
  """Python that makes nested TensorSpecs, with a number for each dimension that is not known."""
  if isinstance(specs, Mapping):
    return f"{{{', '.join(f'{name!r}: {_as_code(spec)}' for name, spec in specs.items())}}}"
  if isinstance(specs, (list, tuple)):
    inner = ", ".join(_as_code(spec) for spec in specs)
    return f"[{inner}]" if isinstance(specs, list) else f"({inner})"
  sizes = [_FREE if size is None else size for size in specs.shape]
  return f"tf.TensorSpec({sizes}, {specs.dtype.name!r})"


def check_devices(cluster: Cluster) -> None:
  """Raises ClusterError where this process lacks a device of the cluster."""
  import tensorflow as tf

  present = [device.name for device in tf.config.list_logical_devices()]
  absent = [name for name in cluster.device_names
            if device_names.find_device(present, name) is None]
  if absent:
    here = ", ".join(device_names.short_name(name) for name in present)
    raise ClusterError(
        f"this process has {here}, but not {listed(absent)}; place on its own devices with "
        "\"local\", or plan for devices elsewhere with placeto_tf.plan_training")


def floatx(model: keras.Model) -> str:
  """The floating-point type of the model's Keras."""
  package = keras_models.package_of(model)
  return package.backend.floatx() if hasattr(package.backend, "floatx") else "float32"


def function_of(graph: ComputationGraph) -> ConcreteFunction:
  """The ConcreteFunction that a graph was read from."""
  assert graph.source is not None
  return graph.source.tf_graph


def short_names(cluster: Cluster) -> str:
  """The first devices of a cluster, and how many more there are."""
  return listed([device_names.short_name(name) for name in cluster.device_names], most=8)


def _graph_of(function: ConcreteFunction, shapes: Sequence[Tuple[int, ...]]) -> ComputationGraph:
  """The graph of a step, with the shapes of a batch where its arguments leave them open."""
  feeds = {tensor.name: shape for tensor, shape in zip(function.inputs, shapes)
           if not tensor.shape.is_fully_defined() and None not in shape}
  return load_graph(function, feed_shapes=feeds or None)


def of_first_replica(plan: TrainingPlan) -> Placement:
  """The devices of what there is once and of the first replica, by the names of one replica."""
  made, indices = plan.replicated, plan.placement.indices(plan.graph, plan.cluster)
  assert made is not None
  known = np.flatnonzero(made.original_of_op >= 0)
  # What there is once comes last and counts.
  order = known[np.argsort(-made.replica_of_op[known], kind="stable")]
  found = np.zeros(made.original.num_ops, dtype=np.int32)
  found[made.original_of_op[order]] = indices[order]
  return Placement.from_indices(made.original, plan.cluster, found)
