"""`PlacedStep` and `PlacedTraining`: training steps that run placed, if that is faster.

A placed step takes the same arguments as the original step. With the first batch, both steps run in
turns, on copies of the variables, before any variable is moved; the faster step is kept. Batches of
another shape run on the same devices.

Keras asks a model for its train function before it trains, and passes an iterator of batches to
this function. `PlacedTraining` gives the model a train function that runs the placed `train_step`.
All other parts of Keras (callbacks, metrics, evaluate, predict, saving) work as before, with the
moved variables.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError, PlacetoError, listed
from placeto_tf.placements import Placement, keras_batches, place_function
from placeto_tf.placements.applied import AppliedFunction
from placeto_tf.placements.following import placed_alike
from placeto_tf.placements.keras_batches import KerasStep
from placeto_tf.placements.placed_functions import trial_function
from placeto_tf.placements.traced_steps import (
  Batch,
  FunctionStep,
  Specs,
  TracedStep,
  check_eager,
  component_shapes,
  opened,
  size_of_shapes,
  takes,
  tensors_of,
)
from placeto_tf.placing import training_plans
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.training_plans import Shapes, TrainingPlan
from placeto_tf.replication.op_roles import PIPELINES, may_be_copied
from placeto_tf.runtime.step_trial import StepTrial, in_turns

if TYPE_CHECKING:
  import keras
  from tensorflow.types.experimental import ConcreteFunction

_CALLS = frozenset("If While Case PartitionedCall StatefulPartitionedCall".split())
_NO_GAIN = 0.999  # share of the unplaced step time; a plan above it is not timed
_MOST_SHAPES = 3  # shapes with a trace of their own; one trace serves all others


@dataclasses.dataclass(frozen=True, eq=False)
class BatchStep:
  """The step for batches of equal specs.

  Attributes:
    batch_size: batch size of the first such batch; None if unknown.
    specs: specs of the batches.
    function: function of the tensors of a batch.
    how: "placed" by a plan, "alike" (with the devices of the plan), or "unplaced".
    replicas: number of replicas that divide the batch.
    shapes: shapes of the tensors, if replicas divide them; else [].
  """

  batch_size: Optional[int]
  specs: Specs
  function: Callable[[Tuple[Any, ...]], Any]
  how: str
  replicas: int = 1
  shapes: Shapes = ()

  def takes(self, specs: Specs, shapes: Shapes) -> bool:
    """Returns whether the step takes batches of these specs and shapes.

    Args:
      specs: specs of the batch.
      shapes: shapes of its tensors; compared only if replicas divide the batch.

    Returns:
      True if the step takes the batch.
    """
    return takes(self.specs, specs) and (self.replicas == 1 or list(self.shapes) == list(shapes))


class PlacedStep:
  """A training step with the arguments of the original step that runs placed; see `compile_step`.

  Attributes:
    cluster: the devices.
    plan: the plan of the placed step; None before the first batch is known.
    trial: the measured times of the unplaced and the placed step; None without a trial.
    verdict: a sentence that says which step runs and why; "" before the decision.
    applied: the placed step that runs, with its simulated step time; None if no placed step runs.
    steps: the step for each different spec of batches so far.
  """

  def __init__(
      self, step: TracedStep, cluster: Cluster, options: Dict[str, Any], *,
      placement: Optional[Placement] = None, verify: bool = True,
      clock: Callable[[], float] = time.perf_counter):
    """Prepares a step; nothing is traced yet.

    Args:
      step: the step to place.
      clock: clock of the trial, in seconds.
      cluster, options, placement, verify: see `compile_step`.
    """
    self.cluster = cluster
    self.plan: Optional[TrainingPlan] = None
    self.trial: Optional[StepTrial] = None
    self.verdict = ""
    self.applied: Optional[AppliedFunction] = None
    self.steps: List[BatchStep] = []
    self._step, self._options, self._placement = step, options, placement
    self._verify, self._clock = verify, clock

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Trains on one batch; takes the arguments of the step and returns its results."""
    assert isinstance(self._step, FunctionStep)
    check_eager()
    batch = self._step.batch(args, kwargs)
    return self._run(batch, self._step.specs(batch))

  @property
  def name(self) -> str:
    """Returns the name of the step, or of the model."""
    return self._step.name

  @property
  def result(self) -> Optional[PlacingResult]:
    """Returns the result of `place()`; None before the search, and for a loaded placement."""
    return None if self.plan is None else self.plan.result

  @property
  def root_dir(self) -> Optional[str]:
    """Returns the directory of the search's TensorBoard events; None without events."""
    return self._options.get("root_dir")

  def __repr__(self) -> str:
    waiting = "the training step is placed when the first batch comes" if self.plan is None else (
        f"planned, {ms_text(self.plan.step_time_us)} a step as simulated; measured when the first "
        "batch comes")
    return (f"{type(self).__name__}({self.name!r} on {training_plans.short_names(self.cluster)}: "
            f"{self.verdict or waiting})")

  def __str__(self) -> str:
    from placeto_tf.placing import training_texts

    return training_texts.describe(self)

  def save(self, path: str) -> None:
    """Writes the placement, for `placement=path` in another process.

    Raises:
      PlacetoError: nothing is placed yet, or the file cannot be written.
    """
    if self.plan is None:
      raise PlacetoError("the training step is placed when the first batch comes; train first, or "
                         "give an example batch where it is compiled")
    self.plan.save(path)

  def make_plan(self, specs: Specs, shapes: Shapes) -> None:
    """Searches a placement for batches of these specs, or uses the given placement.

    Args:
      specs: specs of the batch.
      shapes: shapes of its components, where known.
    """
    if self._placement is None:
      self.plan = training_plans.search(self._step, specs, shapes, self.cluster, self._options)
    else:
      self.plan = training_plans.follow(self._step, specs, shapes, self.cluster, self._placement)
    reason = self._not_timed(self.plan)
    if reason is not None:
      self._place(self.plan, f"Not measured, because {reason}; placed as simulated.")

  def _run(self, batch: Batch, specs: Specs) -> Any:
    """Trains on one batch of these specs."""
    shapes = component_shapes(batch)
    if self.plan is None:
      self.make_plan(specs, shapes)
    assert self.plan is not None
    # The first batch decides which step runs, for all batches.
    if not self.verdict:
      self._decide(self._plan_for(self.plan, specs, shapes), tensors_of(batch))
    # The step for this spec of batch; a new spec gets the devices of the first one.
    step = next((each for each in self.steps if each.takes(specs, shapes)), None)
    if step is None:
      step = self._follow(self.plan, specs, shapes)
      self.steps.append(step)
    return step.function(tensors_of(batch))

  def _not_timed(self, plan: TrainingPlan) -> Optional[str]:
    """Returns the reason why the placed step is not timed beside the unplaced one, or None."""
    if not self._verify:
      return "verify is False"
    current = None if plan.result is None else plan.result.baselines.get("current")
    if current is not None and not current.fits:
      return "the step as it is does not fit in memory"
    # A trial runs steps twice, and so would repeat ops that print or read data.
    effects = _effects(plan.function)
    return f"each step has effects that cannot be undone ({listed(effects)})" if effects else None

  def _plan_for(self, plan: TrainingPlan, specs: Specs, shapes: Shapes) -> TrainingPlan:
    """Returns the plan for the first batch; if its specs differ, the plan's placement is reused."""
    # The plan was made for example arguments with other specs than the first batch.
    if not takes(plan.specs, specs):
      try:
        self.plan = dataclasses.replace(
            training_plans.follow(self._step, specs, shapes, self.cluster, plan.placement),
            result=plan.result)
      except PlacetoError as error:
        self._leave(plan, f"The first batch differs from the planned batches ({error}). The step "
                          "runs as before.")
    return self.plan or plan

  def _decide(self, plan: TrainingPlan, tensors: Tuple[Any, ...]) -> None:
    """Times the unplaced and the placed step in turns, and keeps the faster one."""
    if self.verdict:
      return
    # Simulation finds no gain: a trial is not worth its time.
    if plan.before_us is not None and plan.step_time_us > plan.before_us * _NO_GAIN:
      self._leave(plan, f"A step takes {ms_text(plan.before_us)}, as simulated, and no placement "
                        "is faster. The model trains as before.")
      return
    try:
      # Run both on copies of the variables; no variable is moved yet.
      before, after = trial_function(plan.function), trial_function(
          plan.placed_function, plan.placement)
      self.trial = in_turns(
          _synchronous(before, tensors, xla=self._compiled), _synchronous(after, tensors),
          clock=self._clock)
    except Exception as error:  # such as too little memory, or a missing kernel
      self._place(plan, "Not measured, because the trial failed ("
                        f"{' '.join(str(error).split())[:200]}); placed as simulated.")
      return
    found = self.trial
    times = f"before {ms_text(found.before_us)} (measured, {found.steps} steps each; " \
            f"{ms_text(plan.step_time_us)} were simulated)"
    if found.faster:
      self._place(plan, f"A step takes {ms_text(found.after_us)}, {times}. Kept.")
    else:
      self._leave(plan, f"A step placed takes {ms_text(found.after_us)}, {times}. Not faster here: "
                        "the model trains as before.")

  @property
  def _compiled(self) -> bool:
    """Returns whether XLA compiles the whole unplaced step."""
    return isinstance(self._step, FunctionStep) and self._step.compiled

  def _place(self, plan: TrainingPlan, verdict: str) -> None:
    """Moves the variables, and uses the placed step from now on."""
    self.applied, self.verdict = plan.apply(), verdict
    self.steps.append(BatchStep(
        plan.batch_size, plan.specs, self.applied.function, "placed", plan.replicas, plan.shapes))

  def _leave(self, plan: TrainingPlan, verdict: str) -> None:
    """Uses the unplaced step from now on.

    The trace that was made here is used, so that random numbers are the same as without placing.
    """
    self.verdict = verdict
    self.steps.append(
        BatchStep(plan.batch_size, plan.specs, self._unplaced(plan.function), "unplaced"))

  def _unplaced(self, function: ConcreteFunction) -> Callable:
    """Returns the unplaced step, compiled by XLA if it was before."""
    import tensorflow as tf

    return tf.function(function, jit_compile=True) if self._compiled else function

  def _follow(self, plan: TrainingPlan, specs: Specs, shapes: Shapes) -> BatchStep:
    """Returns the step for another shape, such as a partial last batch."""
    size = size_of_shapes(shapes)
    # A batch that the replicas divide gets as many replicas, for up to `_MOST_SHAPES` shapes.
    if self.applied is not None and plan.replicas > 1 and size is not None and (
        size % plan.replicas == 0) and len(self.steps) <= _MOST_SHAPES:
      source, _ = training_plans.replica_source(
          self._step, specs, shapes, [plan.replicas], self._options.get("batch_norm", "replica"))
      try:
        function = training_plans.function_of(source.replicas(plan.replicas).graph)
        step = self._alike(plan.placement, specs, function, size, plan.replicas, shapes)
        if step is not None:
          return step
      except GraphError:
        pass  # one replica takes such a batch
    specs, function = self._traced(plan, specs)
    if self.applied is None:
      return BatchStep(size, specs, self._unplaced(function), "unplaced")
    # Other batches run on one replica, with the devices of the first.
    placement = training_plans.of_first_replica(plan) if plan.replicas > 1 else plan.placement
    step = self._alike(placement, specs, function, size, 1, shapes)
    if step is None:
      warnings.warn(
          f"batches such as {specs} need a step of their own, which runs unplaced, because most of "
          "its ops are not in the placed step; train with batches as at the first step",
          stacklevel=4)
      step = BatchStep(size, specs, function, "unplaced")
    return step

  def _traced(self, plan: TrainingPlan, specs: Specs) -> Tuple[Specs, ConcreteFunction]:
    """Returns a trace for batches of these specs, and the specs that it takes.

    After some shapes, the next trace has unknown dimensions where earlier batches differed.
    """
    if plan.replicas > 1 and takes(plan.traced, specs):
      return plan.traced, self._step.trace(plan.traced)
    if len(self.steps) > _MOST_SHAPES and not isinstance(self._step, KerasStep):
      # Dimensions that differed between earlier batches become unknown.
      wide = specs
      for step in self.steps:
        wide = opened(wide, step.specs)
      try:
        return wide, self._step.trace(wide)
      except GraphError:
        pass  # the step cannot be traced with unknown dimensions
    return specs, self._step.trace(specs)

  def _alike(
      self, placement: Placement, specs: Specs, function: ConcreteFunction, size: Optional[int],
      replicas: int, shapes: Shapes) -> Optional[BatchStep]:
    """Returns a trace with the first one's devices; None if most of its ops have other names."""
    graph = training_plans.graph_of(self._step, function, shapes)
    found, known = placed_alike(placement, graph, function, self.cluster)
    # Too few ops have known names: the trace is of another step.
    if known < training_plans.ENOUGH:
      return None
    return BatchStep(
        size, specs, place_function(found, function).function, "alike", replicas, shapes)


class PlacedTraining(PlacedStep):
  """A Keras model's training, placed; see `compile_placed`.

  Attributes:
    model: the Keras model.
  """

  def __init__(
      self, model: keras.Model, cluster: Cluster, options: Dict[str, Any], *,
      placement: Optional[Placement] = None, **more: Any):
    """Prepares a model's training, without XLA; nothing is traced yet.

    Args:
      model: a compiled model.
      cluster, options, placement, **more: see `PlacedStep`.
    """
    step = KerasStep(model)
    super().__init__(step, cluster, options, placement=placement, **more)
    self.model = model
    self.step = step
    self._state = keras_batches.compiled_state(model)
    self.wide = step.wide and not training_plans.is_divided(options) and (
        placement is None or placement.replicas in (None, 1))
    self._jit_compile = keras_batches.without_xla(model)

  @property
  def _compiled(self) -> bool:
    return bool(self._jit_compile)

  def run_step(self, data: Any, element_spec: Optional[Specs] = None) -> Any:
    """Trains on one batch.

    Args:
      data: the batch from Keras.
      element_spec: element spec of the batch's iterator, if there is one.

    Returns:
      The logs of the model's `train_step`.
    """
    batch = keras_batches.as_batch(data, self.step.floatx)
    if self.plan is not None:
      batch = keras_batches.cast_like(batch, self.plan.specs)
    logs = self._run(
        batch, keras_batches.specs_of(batch, data, element_spec, wide=self.wide))
    # Keras counts steps in its own train function, which does not run here.
    counter = getattr(self.model, "_train_counter", None)  # of Keras 2
    if counter is not None:
      counter.assign_add(1)
    return logs

  def train_function(self, iterator: Iterator) -> Any:
    """Trains on as many batches as one call by Keras should."""
    import tensorflow as tf

    logs = None
    for done in range(keras_batches.steps_per_execution(self.model)):
      try:
        data = next(iterator)
      except (StopIteration, tf.errors.OutOfRangeError):
        # The end of the data ends the epoch only if this call has trained on nothing.
        if not done:
          raise
        break
      logs = self.run_step(data, getattr(iterator, "element_spec", None))
    return logs

  def make_train_function(self, force: bool = False) -> Callable:
    """Replaces the model's own method, which Keras calls before it trains."""
    # The model was compiled again: the plan is of another step.
    if keras_batches.compiled_state(self.model) != self._state:
      warnings.warn(
          "the model has been compiled again since compile_placed: its training runs unplaced; "
          "call compile_placed again", stacklevel=2)
      self.undo()
      return self.model.make_train_function(force)
    self.model.train_function = self.train_function
    return self.model.train_function

  def undo(self) -> None:
    """Restores the model's own train function; variables are not moved back."""
    if self.model.__dict__.get("make_train_function") is not None:
      del self.model.__dict__["make_train_function"]
    self.model.train_function = None
    if self._jit_compile and keras_batches.compiled_state(self.model) == self._state:
      self.model.jit_compile = self._jit_compile

  def _leave(self, plan: TrainingPlan, verdict: str) -> None:
    """Uses the unplaced step; Keras itself handles XLA and several steps per call."""
    super()._leave(plan, verdict)
    if self._jit_compile or keras_batches.steps_per_execution(self.model) > 1:
      self.undo()
      self.model.make_train_function()


def _synchronous(
    function: Callable, tensors: Tuple[Any, ...], xla: bool = False) -> Callable[[], None]:
  """Returns a callable that runs one step on a batch and waits until the step has ended."""
  import tensorflow as tf

  if xla:
    function = tf.function(function, jit_compile=True)

  def step() -> None:
    function(tensors)
    # Wait, because a function may return before its ops on GPUs have ended.
    tf.test.experimental.sync_devices()

  return step


def _effects(function: ConcreteFunction) -> List[str]:
  """Returns types of ops with effects besides variables, such as a py_function or an iterator."""
  graph_def = function.graph.as_graph_def()
  bodies = graph_def.library.function
  # Types of ops in the graph and in its functions, without calls of these functions.
  kinds = {node.op for nodes in (graph_def.node, *(each.node_def for each in bodies))
           for node in nodes} - {each.signature.name for each in bodies}
  return sorted(kind for kind in kinds if kind in PIPELINES or kind.startswith("Print")
                or not (may_be_copied(kind) or kind in _CALLS or kind.startswith("CudnnRNN")))
