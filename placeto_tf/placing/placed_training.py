"""`compile_step` and `compile_placed`: training steps that run placed, if that is faster.

A placed step takes the same arguments as the original step. With the first batch, both steps run in
turns, on copies of the variables, before any variable is moved; the faster step is kept. Batches of
another shape run on the same devices.

Keras asks a model for its train function before it trains, and passes an iterator of batches to
this function. `PlacedTraining` gives the model a train function that runs the placed `train_step`.
All other parts of Keras (callbacks, metrics, evaluate, predict, saving) work as before, with the
moved variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

from placeto_tf.costs import no_side_effects
from placeto_tf.errors import GraphError, PlacementError, PlacetoError, counted, listed, one_line
from placeto_tf.graphs.variable_parts import VariableParts, parts_of
from placeto_tf.on_use import ConcreteFunction, keras, tf
from placeto_tf.placements import Placement, keras_batches, traced_steps
from placeto_tf.placements.keras_batches import KerasStep
from placeto_tf.placements.moving import move_variables
from placeto_tf.placements.placed_functions import PlacedFunction, trial_function
from placeto_tf.placements.traced_steps import Batch, FunctionStep, Specs, TracedStep
from placeto_tf.placing import tables, training_plans
from placeto_tf.placing.config import Devices, as_cluster
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.training_plans import Found, Shapes, TrainingPlan
from placeto_tf.runtime.step_trial import StepTrial, in_turns

_NO_GAIN = 0.999  # share of the unplaced step time; a plan above it is not timed
_MOST_SHAPES = 3  # shapes with a trace of their own; one trace serves all others


@dataclasses.dataclass(frozen=True, eq=False)
class BatchStep:
  """The step for batches of equal specs.

  Attributes:
    specs: specs of the batches.
    shapes: shapes of the first such batch's tensors.
    function: function of the tensors of a batch.
    how: "placed" by a plan, "alike" (with the devices of the plan), or "unplaced".
    replicas: number of replicas that divide the batch.
    parts: variables whose slices or copies the function trains.
  """

  specs: Specs
  shapes: Shapes
  function: Callable[[Tuple[Any, ...]], Any]
  how: str
  replicas: int = 1
  parts: FrozenSet[VariableParts] = frozenset()

  @property
  def batch_size(self) -> Optional[int]:
    """Returns the batch size of the first such batch; None if unknown."""
    return traced_steps.size_of_shapes(self.shapes)

  def text(self, replicas: int) -> str:
    """Returns the way to run such batches, where the planned batch has this many replicas."""
    if self.how != "alike":
      return self.how
    return "whole, on the devices of one replica" if self.replicas < replicas else (
        "on the same devices")

  def takes(self, specs: Specs, shapes: Shapes) -> bool:
    """Returns whether the step takes batches of these specs and shapes.

    Args:
      specs: specs of the batch.
      shapes: shapes of its tensors; compared only if replicas divide the batch.

    Returns:
      True if the step takes the batch.
    """
    return traced_steps.takes(self.specs, specs) and (
        self.replicas == 1 or list(self.shapes) == list(shapes))


class PlacedStep:
  """A training step with the arguments of the original step that runs placed; see `compile_step`.

  Attributes:
    name: of the step, or of the model.
    root_dir: directory of the search's TensorBoard events; None without events.
    cluster: the devices.
    plan: the plan of the placed step; None before the first batch is known.
    result: the result of `place()`; None before the search, and for a loaded placement.
    trial: the measured times of the unplaced and the placed step; None without a trial.
    verdict: a sentence that says which step runs and why; "" before the decision.
    applied: the placed step that runs, and its variables; None if no placed step runs.
    steps: the step for each different spec of batches so far.
  """

  def __init__(
      self, step: TracedStep, cluster: Devices, options: Dict[str, Any], *,
      placement: Found = None, verify: bool = True):
    """Checks devices, placement and options; nothing is traced yet."""
    self._placement = training_plans.loaded(placement, options)
    training_plans.check_options(options)
    self.cluster = as_cluster(cluster, self._placement)
    training_plans.check_devices(self.cluster)
    self.name, self.root_dir = step.name, options.get("root_dir")
    self.plan: Optional[TrainingPlan] = None
    self.result: Optional[PlacingResult] = None
    self.trial: Optional[StepTrial] = None
    self.verdict = ""
    self.applied: Optional[PlacedFunction] = None
    self.steps: List[BatchStep] = []
    self._step, self._options, self._verify = step, options, verify
    self._parts: List[VariableParts] = []  # variables that the placed step trains in parts
    # Whether XLA compiles the whole unplaced step.
    self._compiled = isinstance(step, FunctionStep) and step.compiled

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Trains on one batch; takes the arguments of the step and returns its results."""
    assert isinstance(self._step, FunctionStep)
    traced_steps.check_eager()
    batch = self._step.batch(args, kwargs)
    return self._run(batch, self._step.specs(batch))

  def __repr__(self) -> str:
    waiting = "the training step is placed when the first batch comes" if self.plan is None else (
        f"planned, {self.plan.text}; measured when the first batch comes")
    return (f"{type(self).__name__}({self.name!r} on {training_plans.short_names(self.cluster)}: "
            f"{self.verdict or waiting})")

  def __str__(self) -> str:
    """Returns ten lines at most; the first one says which step runs, and why."""
    plan, result = self.plan, self.result
    if plan is None:
      return repr(self)
    lines = [f"Training step of {self.name!r}. "
             f"{self.verdict or 'It is measured when the first batch comes.'}",
             f"Planned: {plan.text}; batches of {plan.batch_size or 'varying size'}."]
    # The first entry is the step that was planned.
    others = dict.fromkeys(
        f"{step.batch_size} run {step.text(plan.replicas)}" for step in self.steps[1:])
    lines += [f"Batches of {listed([*others])}."] if others else []
    if result is not None:
      check, unchecked = result.replication and result.replication.check, tables.unchecked(result)
      if unchecked:
        lines[0] += f" {unchecked}"
      elif check:
        lines.append(f"{counted(plan.replicas, 'replica')} share each batch; {check}.")
      # The verdict of the table repeats the lines above.
      lines += tables.unknowns(result) + tables.last_lines(result)[1:]
    last = [f"To look at it: tensorboard --logdir={self.root_dir}"] if self.root_dir else []
    return "\n".join([*lines[:10 - len(last)], *last])

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
      self.result = self.plan.result
    else:
      self.plan = training_plans.follow(self._step, specs, shapes, self.cluster, self._placement)
    plan, reason = self.plan, self._not_timed(self.plan)
    if reason is None:
      return
    verdict = f"Not measured, because {reason}; placed as simulated."
    # Only replicas or pins that were asked for can be slower than the unplaced step.
    if plan.before_us is not None and plan.step_time_us > plan.before_us:
      verdict = (f"The placed step is simulated to be slower, {ms_text(plan.step_time_us)} instead "
                 f"of {ms_text(plan.before_us)}. {verdict}")
      remedy = " replicas=\"auto\" places no slower step." if plan.replicas > 1 else ""
      warnings.warn(verdict + remedy, stacklevel=3)
    self._keep(plan, True, verdict)

  def _run(self, batch: Batch, specs: Specs) -> Any:
    """Trains on one batch of these specs."""
    shapes = traced_steps.component_shapes(batch)
    if self.plan is None:
      self.make_plan(specs, shapes)
    assert self.plan is not None
    # The first batch decides which step runs, for all batches.
    if not self.verdict:
      self._decide(self.plan, specs, shapes, traced_steps.tensors_of(batch))
    # The step for this spec of batch; a new spec gets the devices of the first one.
    step = next((each for each in self.steps if each.takes(specs, shapes)), None)
    if step is None:
      step = self._follow(self.plan, specs, shapes)
      self.steps.append(step)
    for each in self._parts:
      (each.push if each in step.parts else each.lend)()
    return step.function(traced_steps.tensors_of(batch))

  def _not_timed(self, plan: TrainingPlan) -> Optional[str]:
    """Returns the reason why the placed step is not timed beside the unplaced one, or None."""
    if not self._verify:
      return "verify is False"
    if plan.result is not None and not plan.result.baselines["current"].fits:
      return "the step as it is does not fit in memory"
    # A trial runs steps twice, and so would repeat ops that print or read data.
    graph_def = plan.function.graph.as_graph_def()
    kinds = sorted({op.op for op in no_side_effects.acting(graph_def.node, graph_def.library)})
    return f"each step has effects that cannot be undone ({listed(kinds)})" if kinds else None

  def _decide(
      self, plan: TrainingPlan, specs: Specs, shapes: Shapes, tensors: Tuple[Any, ...]) -> None:
    """Times the unplaced and the placed step in turns, and keeps the faster one."""
    # The plan was made for example arguments with other specs: its placement is reused.
    if not traced_steps.takes(plan.specs, specs):
      try:
        plan = self.plan = training_plans.follow(
            self._step, specs, shapes, self.cluster, plan.placement)
      except PlacetoError as error:
        self._keep(plan, False, f"The first batch differs from the planned batches ({error}). The "
                                "step runs as before.")
        return
    # Simulation finds no gain: a trial is not worth its time.
    if plan.before_us is not None and plan.step_time_us > plan.before_us * _NO_GAIN:
      self._keep(plan, False, f"A step takes {ms_text(plan.before_us)}, as simulated, and no "
                              "placement is faster. The model trains as before.")
      return
    try:
      for each in parts_of(plan.placed_function):
        each.push()
      # Run both on copies of the variables; no variable is moved yet.
      before, after = trial_function(plan.function), trial_function(
          plan.placed_function, plan.placement)
      self.trial = in_turns(
          _synchronous(self._unplaced(before), tensors), _synchronous(after, tensors))
    except Exception as error:  # such as too little memory, or a missing kernel
      self._keep(plan, True, f"Not measured, because the trial failed ({one_line(error)}); placed "
                             "as simulated.")
      return
    found = self.trial
    self._keep(plan, found.faster, (
        f"A step placed takes {ms_text(found.after_us)}, before {ms_text(found.before_us)} "
        f"(measured, {found.steps} steps each; {ms_text(plan.step_time_us)} were simulated). "
        f"{'Kept.' if found.faster else 'Not faster here: the model trains as before.'}"))

  def _keep(self, plan: TrainingPlan, placed: bool, verdict: str) -> None:
    """Uses the placed step from now on, whose variables are moved; or else the unplaced step.

    The trace that was made here is used, so that random numbers are the same as without placing.
    """
    self._parts = parts_of(plan.placed_function) if placed else []
    for each in self._parts:
      each.push()
    # The whole tables are on the host; the first copy of a variable is the variable.
    move_variables([(each.whole, "/CPU:0") for each in self._parts if not each.copies])
    self.applied, self.verdict = plan.apply() if placed else None, verdict
    for each in self._parts:
      each.watch()
    function = self.applied.function if self.applied else self._unplaced(plan.function)
    self.steps.append(BatchStep(
        plan.specs, plan.shapes, function, *(
            ("placed", plan.replicas, frozenset(self._parts)) if placed else ("unplaced", 1))))

  def _unplaced(self, function: ConcreteFunction) -> Callable:
    """Returns the unplaced step, compiled by XLA if it was before."""
    return tf.function(function, jit_compile=True) if self._compiled else function

  def _follow(self, plan: TrainingPlan, specs: Specs, shapes: Shapes) -> BatchStep:
    """Returns the step for another shape, such as a partial last batch."""
    size, many = traced_steps.size_of_shapes(shapes), len(self.steps) > _MOST_SHAPES
    # A batch that the replicas divide gets as many replicas, for up to `_MOST_SHAPES` shapes.
    if self.applied is not None and plan.replicas > 1 and size is not None and (
        size % plan.replicas == 0) and not many:
      with contextlib.suppress(GraphError, PlacementError):  # one replica takes such a batch
        return self._alike(plan.placement, specs, shapes)
    function = None
    if plan.replicas > 1 and traced_steps.takes(plan.traced, specs):
      specs = plan.traced
    elif many and not isinstance(self._step, KerasStep):
      # After some shapes, dimensions in which batches differed become unknown.
      wide = functools.reduce(traced_steps.opened, (step.specs for step in self.steps), specs)
      with contextlib.suppress(GraphError):  # the step may need known dimensions
        specs, function = wide, self._step.trace(wide)
    function = function or self._step.trace(specs)
    if self.applied is not None:
      try:
        # Other batches run on one replica, with the devices of the first.
        return self._alike(training_plans.of_first_replica(plan.placement), specs, shapes, function)
      except PlacementError as error:
        warnings.warn(
            f"batches such as {specs} need a step of their own, which runs unplaced ({error}); "
            "train with batches as at the first step", stacklevel=4)
    return BatchStep(specs, shapes, self._unplaced(function), "unplaced")

  def _alike(
      self, placement: Placement, specs: Specs, shapes: Shapes,
      function: Optional[ConcreteFunction] = None) -> BatchStep:
    """Returns the step of another batch, with devices of a placement where variables are now."""
    found = training_plans.follow(
        self._step, specs, shapes, self.cluster, placement, function=function, keep_variables=True)
    return BatchStep(specs, shapes, found.apply().function, "alike", found.replicas,
                     frozenset(parts_of(found.placed_function)))


class PlacedTraining(PlacedStep):
  """A Keras model's training, placed; see `compile_placed`.

  Attributes:
    model: the Keras model.
  """

  def __init__(
      self, model: keras.Model, cluster: Devices, options: Dict[str, Any], *,
      placement: Found = None, **more: Any):
    """Prepares a model's training, without XLA; nothing is traced yet.

    Args:
      model: a compiled model; an earlier placed training of it is undone.
      cluster, options, placement, **more: see `PlacedStep`.
    """
    self.step = KerasStep(model)
    super().__init__(self.step, cluster, options, placement=placement, **more)
    self.model = model
    # Replicas divide batches of one size.
    if training_plans.is_divided(options) or self._placement is not None and (
        self._placement.replicas not in (None, 1)):
      self.step.wide = False
    previous = getattr(model.__dict__.get("make_train_function"), "__self__", None)
    if isinstance(previous, PlacedTraining):
      previous.undo()
    self._state = keras_batches.compiled_state(model)
    self._jit_compile = keras_batches.without_xla(model)
    self._compiled = bool(self._jit_compile)
    self._looked = 0.0, 0.0  # when all copies were last compared, and the time that this took

  def train_function(self, iterator: Iterator) -> Any:
    """Trains on as many batches as one call by Keras should; returns the logs of the last one."""
    logs = None
    for done in range(keras_batches.steps_per_execution(self.model)):
      try:
        data = next(iterator)
      except (StopIteration, tf.errors.OutOfRangeError):
        # The end of the data ends the epoch only if this call has trained on nothing.
        if not done:
          raise
        break
      batch = keras_batches.as_batch(data, self.step.floatx)
      logs = self._run(batch, keras_batches.specs_of(
          batch, data, getattr(iterator, "element_spec", None), wide=self.step.wide))
      # Keras counts steps in its own train function, which does not run here.
      counter = getattr(self.model, "_train_counter", None)  # of Keras 2
      if counter is not None:
        counter.assign_add(1)
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
    # Functions of the program may have written variables unseen. To look takes at most a hundredth
    # of the time.
    now, (before, took) = time.monotonic(), self._looked
    if now - before >= 100 * took:
      for each in self._parts:
        each.look()
      self._looked = now, time.monotonic() - now
    self.model.train_function = self.train_function
    return self.model.train_function

  def undo(self) -> None:
    """Restores the model's own train function; variables are not moved back."""
    for each in self._parts:
      each.release()
    self._parts = []
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
      self.model.__dict__.pop(name, None)
    self.model.train_function = None
    if self._jit_compile and keras_batches.compiled_state(self.model) == self._state:
      self.model.jit_compile = self._jit_compile

  def _with_whole_variables(self, make: Callable, *args: Any, **kwargs: Any) -> Any:
    """Joins slices, and calls a method of the model that may read or write variables."""
    for each in self._parts:
      each.lend()
    return make(self.model, *args, **kwargs)

  def _keep(self, plan: TrainingPlan, placed: bool, verdict: str) -> None:
    """Uses a step; for the unplaced one, Keras itself handles XLA and several steps per call."""
    super()._keep(plan, placed, verdict)
    # Functions of evaluate and predict read tables without an access from Python.
    for name in ("make_test_function", "make_predict_function") if self._parts else ():
      self.model.__dict__[name] = functools.partial(self._with_whole_variables, getattr(
          type(self.model), name))
    if not placed and (self._jit_compile or keras_batches.steps_per_execution(self.model) > 1):
      self.undo()
      self.model.make_train_function()


def compile_step(
    train_step: Callable,
    cluster: Devices = None,
    *,
    args: Optional[Sequence[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    input_signature: Optional[Sequence[Any]] = None,
    batch_size: Optional[int] = None,
    placement: Found = None,
    verify: bool = True,
    **options: Any,
) -> PlacedStep:
  """Places a custom training step.

  The result takes the same arguments as the step and returns the same results. It trains the same
  variables (of models, optimizers, metrics), which are moved to their devices, so that checkpoints,
  summaries and the rest of the training loop work as before. Batches of another size than the
  first, such as a partial last batch, run on the same devices.

  With the first batch, the placed and the unplaced step are timed in turns, on copies of the
  variables. If the placed step is not faster, no variable is moved, and the unplaced step runs.

  Args:
    train_step: a `tf.function`, a Python function that can be one, or a ConcreteFunction. Arguments
      that are neither tensors nor arrays are built into the step, as in a `tf.function`.
    cluster: a `Cluster`, or text for `Cluster.parse`, of devices that this process has. Not needed
      if `placement` names its devices.
    args, kwargs: example arguments (tensors, arrays or TensorSpecs). With them, the step is planned
      now; without both, it is planned at its first call.
    input_signature: `tf.TensorSpec`s of the positional arguments; unknown dimensions are unknown in
      the trace, too. By default the signature of the `tf.function`.
    batch_size: batch size of an iterator that the step itself reads, if its dataset does not
      declare it.
    placement: an earlier result to use instead of a search: a `TrainingPlan` of `plan_step`, a
      `Placement`, or the path of a file that one of these, or `PlacedStep.save`, wrote.
    verify: whether the placed step is timed beside the unplaced one. If not, a step that is planned
      now is also placed now.
    **options: of `place()`: method, max_seconds, max_evaluations, seed, replicas, ... With
      replicas=N or "auto" the batch is divided among replicas that share the variables; batches
      that N does not divide run on one replica.

  Returns:
    The placed step, which can be called, printed and saved.

  Raises:
    PlacetoError: the step cannot be traced or placed, belongs to a distribution strategy, or does
      not take these arguments; or this process lacks a device.
    TypeError: `place()` has no such option.
  """
  step = FunctionStep(train_step, input_signature, batch_size)
  placed = PlacedStep(step, cluster, options, placement=placement, verify=verify)
  # With example arguments, plan now; else with the first batch.
  if args is not None or kwargs is not None:
    placed.make_plan(*training_plans.read_arguments(step, args or (), kwargs))
  return placed


def compile_placed(
    model: Any,
    cluster: Devices = None,
    *,
    batch_size: Optional[int] = None,
    data: Any = None,
    placement: Found = None,
    verify: bool = True,
    **options: Any,
) -> PlacedTraining:
  """Places the training step of a compiled Keras model, for `fit` and `train_on_batch`.

  Call it after `model.compile`. The model is changed in place and keeps its variables, which are
  moved to their devices: evaluate, predict, callbacks, metrics, checkpoints and saving work as
  before. XLA is turned off for placed training (`jit_compile`). As with `compile_step`, the placed
  step is timed beside the unplaced one, and the faster one is used.

  Args:
    model: a compiled model of Keras 2 or Keras 3.
    batch_size: if given, plans now, for batches of this size of the model's inputs.
    data: if given, plans now, for a batch like this one: (inputs, targets), as arrays, tensors or
      TensorSpecs, or a `tf.data.Dataset` of batches. Without both, the step is planned with the
      first batch.
    cluster, placement, verify, **options: as for `compile_step`.

  Returns:
    The placed training, which can be printed; its `undo()` restores the model's own step.

  Raises:
    PlacetoError: the model is not compiled, belongs to a distribution strategy, or its step cannot
      be traced or placed; or this process lacks a device.
    TypeError: `place()` has no such option.
  """
  # This turns XLA off in the model; `undo` turns it on again.
  training = PlacedTraining(model, cluster, options, placement=placement, verify=verify)
  example = keras_batches.read_example(training.step, batch_size, data)
  if example is not None:
    training.make_plan(*example)
  # Bypass __setattr__, so that Keras does not track and save this attribute.
  model.__dict__["make_train_function"] = training.make_train_function
  return training


def _synchronous(function: Callable, tensors: Tuple[Any, ...]) -> Callable[[], None]:
  """Returns a callable that runs one step on a batch and waits until the step has ended."""
  def step() -> None:
    function(tensors)
    # Wait, because a function may return before its ops on GPUs have ended.
    tf.test.experimental.sync_devices()

  return step
