"""`PlacedTraining`: a Keras model whose training step runs placed, if that is faster.

Keras asks a model for its train function before it trains and hands it an iterator of batches. The
model is given a train function that runs the placed step for the batch's shape. All other parts of
Keras (callbacks, metrics, evaluate, predict, saving) work as before, with the moved variables.

With the first batch the placed step and the step as it was run in turns, on copies of the
variables, before anything is moved; the faster one stays.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacetoError, listed
from placeto_tf.graphs import ComputationGraph, load_graph
from placeto_tf.placements import Placement, keras_batches, place_function
from placeto_tf.placements.applied import AppliedFunction
from placeto_tf.placements.following import placed_alike
from placeto_tf.placements.keras_batches import Batch, Specs
from placeto_tf.placements.placed_functions import trial_function
from placeto_tf.placing import training_plans
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.training_plans import TrainingPlan
from placeto_tf.replication import replicate
from placeto_tf.replication.op_roles import PIPELINES, may_be_copied
from placeto_tf.runtime.step_trial import StepTrial, in_turns

if TYPE_CHECKING:
  import keras
  from tensorflow.types.experimental import ConcreteFunction

_CALLS = frozenset("If While Case PartitionedCall StatefulPartitionedCall".split())
_NO_GAIN = 0.999  # of the step as it is: what takes as long is not worth a trial


@dataclasses.dataclass(frozen=True, eq=False)
class BatchStep:
  """The step for batches of one kind.

  Attributes:
    batch_size: of the first such batch; None if it is not known.
    specs: of the batches.
    function: takes a batch.
    how: "placed" by a plan, "alike" (as the placed one), or "unplaced".
    replicas: among which the batch is divided.
  """

  batch_size: Optional[int]
  specs: Specs
  function: Callable[[Batch], Any]
  how: str
  replicas: int = 1


class PlacedTraining:
  """A Keras model's training, placed; see `compile_placed`.

  Attributes:
    model: the Keras model.
    cluster: the devices.
    plan: the placed step as it was planned; None before the first batch is known.
    trial: the measured steps, as it was and placed; None before, or where none was made.
    verdict: in a sentence, which step runs and why; "" before that is decided.
    applied: the placed step that runs, with the step time that was promised; None if none does.
    steps: the step for each kind of batches seen.
    wide: whether a step is traced for batches of any size.
  """

  def __init__(
      self, model: keras.Model, cluster: Cluster, options: Dict[str, Any], *,
      placement: Optional[Placement] = None, verify: bool = True,
      clock: Callable[[], float] = time.perf_counter):
    """Args: see `compile_placed`; clock: of the trial, in seconds."""
    self.model = model
    self.cluster = cluster
    self.plan: Optional[TrainingPlan] = None
    self.trial: Optional[StepTrial] = None
    self.verdict = ""
    self.applied: Optional[AppliedFunction] = None
    self._options, self._placement, self._verify, self._clock = options, placement, verify, clock
    self.steps: List[BatchStep] = []
    self._compiled = keras_batches.compiled_state(model)
    self.wide = training_plans.is_wide(model, options) and (
        placement is None or placement.replicas in (None, 1))
    self._jit_compile = keras_batches.without_xla(model)

  @property
  def result(self) -> Optional[PlacingResult]:
    """What `place()` found; None before that, and for a placement that was loaded."""
    return None if self.plan is None else self.plan.result

  @property
  def root_dir(self) -> Optional[str]:
    """Where TensorBoard's events of the search are; None where none are written."""
    return self._options.get("root_dir")

  def __repr__(self) -> str:
    return (f"PlacedTraining({getattr(self.model, 'name', '')!r} on "
            f"{training_plans.short_names(self.cluster)}: {self.verdict or self._waiting()})")

  def __str__(self) -> str:
    from placeto_tf.placing import training_texts

    return training_texts.describe(self)

  def save(self, path: str) -> None:
    """Writes the placement, for `compile_placed(model, placement=path)` in another process.

    Raises:
      PlacetoError: nothing is placed yet, or the file cannot be written.
    """
    if self.plan is None:
      raise PlacetoError("the training step is placed when the first batch comes; train first, or "
                         "give compile_placed a batch_size")
    self.plan.save(path)

  def make_plan(self, specs: Specs, shapes: Sequence[Tuple[int, ...]]) -> None:
    """Searches a placement for batches of these specs, or takes the one that was given.

    Args:
      specs: of the batch.
      shapes: of its components, where they are known.
    """
    if self._placement is None:
      self.plan = training_plans.search(self.model, specs, shapes, self.cluster, self._options)
    else:
      self.plan = training_plans.follow(self.model, specs, shapes, self.cluster, self._placement)
    reason = self._not_timed(self.plan)
    if reason is not None:
      self._place(self.plan, f"Not measured, because {reason}; placed as simulated.")

  def run_step(self, data: Any, element_spec: Optional[Specs] = None) -> Any:
    """Trains on one batch; returns the logs of the model's `train_step`.

    Args:
      data: the batch, as Keras hands it over.
      element_spec: of the iterator that gave it, where there is one.
    """
    batch = keras_batches.as_batch(data, training_plans.floatx(self.model))
    if self.plan is not None:
      batch = keras_batches.cast_like(batch, self.plan.specs)
    specs = keras_batches.specs_of(batch, data, element_spec, wide=self.wide)
    if self.plan is None:
      self.make_plan(specs, keras_batches.component_shapes(batch))
    assert self.plan is not None
    if not self.verdict:
      self._decide(self._plan_for(self.plan, specs, batch), batch)
    step = next((each for each in self.steps if keras_batches.takes(each.specs, specs)), None)
    if step is None:
      step = self._follow(self.plan, specs)
      self.steps.append(step)
    logs = step.function(batch)
    counter = getattr(self.model, "_train_counter", None)  # of Keras 2
    if counter is not None:
      counter.assign_add(1)
    return logs

  def train_function(self, iterator: Iterator) -> Any:
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
      logs = self.run_step(data, getattr(iterator, "element_spec", None))
    return logs

  def make_train_function(self, force: bool = False) -> Callable:
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
    if self._jit_compile and keras_batches.compiled_state(self.model) == self._compiled:
      self.model.jit_compile = self._jit_compile

  def _waiting(self) -> str:
    if self.plan is None:
      return "the training step is placed when the first batch comes"
    return (f"planned, {ms_text(self.plan.step_time_us)} a step as simulated; measured when "
            "the first batch comes")

  def _not_timed(self, plan: TrainingPlan) -> Optional[str]:
    """Why the placed step runs without being compared, or None."""
    if not self._verify:
      return "verify is False"
    current = None if plan.result is None else plan.result.baselines.get("current")
    if current is not None and not current.fits:
      return "the step as it is does not fit in memory"
    effects = _effects(plan.function)
    if effects:
      return f"each step does what cannot be taken back ({listed(effects)})"
    return None

  def _plan_for(self, plan: TrainingPlan, specs: Specs, batch: Batch) -> TrainingPlan:
    """The plan for the first batch: that of another size or type follows the one that was made."""
    if not keras_batches.takes(plan.specs, specs):
      try:
        self.plan = dataclasses.replace(
            training_plans.follow(
                self.model, specs, keras_batches.component_shapes(batch), self.cluster,
                plan.placement),
            result=plan.result)
      except PlacetoError as error:
        self._leave(plan, f"The first batch is none of those planned for ({error}). The model "
                          "trains as before.")
    return self.plan or plan

  def _decide(self, plan: TrainingPlan, batch: Batch) -> None:
    """Has the step as it was and the placed one run in turns; the faster one stays."""
    if self.verdict:
      return
    if plan.before_us is not None and plan.step_time_us > plan.before_us * _NO_GAIN:
      self._leave(plan, f"A step takes {ms_text(plan.before_us)}, as simulated, and no placement "
                        "is faster. The model trains as before.")
      return
    try:
      before, after = trial_function(plan.function), trial_function(
          plan.placed_function, plan.placement)
      self.trial = in_turns(
          _synchronous(before, batch, xla=bool(self._jit_compile)), _synchronous(after, batch),
          clock=self._clock)
    except Exception as error:  # a device that has no room, or a kernel that is not there
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

  def _place(self, plan: TrainingPlan, verdict: str) -> None:
    self.applied, self.verdict = plan.apply(), verdict
    self.steps.append(BatchStep(
        plan.batch_size, plan.specs, self.applied.function, "placed", plan.replicas))

  def _leave(self, plan: TrainingPlan, verdict: str) -> None:
    """Has the model train as before.

    Its steps go on being those traced here, so that what is random in them is as without a
    placement; XLA's step and several steps in one are Keras's own.
    """
    self.verdict = verdict
    self.steps.append(BatchStep(plan.batch_size, plan.specs, plan.function, "unplaced"))
    if self._jit_compile or keras_batches.steps_per_execution(self.model) > 1:
      self.undo()
      self.model.make_train_function()

  def _part(self, specs: Specs, replicas: int) -> ComputationGraph:
    return training_plans.part_of(self.model, specs, replicas)

  def _follow(self, plan: TrainingPlan, specs: Specs) -> BatchStep:
    """The step for another shape, such as a partial last batch: as the first one is."""
    size, replicas = keras_batches.size_of(specs), plan.replicas
    if self.applied is None:
      return BatchStep(
          size, specs, keras_batches.trace_step(self.model, specs), "unplaced")
    if replicas > 1 and size is not None and size % replicas == 0:
      whole = load_graph(keras_batches.trace_step(self.model, specs))
      graph = replicate(self._part(specs, replicas), replicas, whole=whole).graph
      function = training_plans.function_of(graph)
    else:
      function = keras_batches.trace_step(self.model, specs)
      graph, replicas = load_graph(function), 1
    placement = plan.placement
    if replicas < plan.replicas:
      placement = training_plans.of_first_replica(plan)
    placement, known = placed_alike(placement, graph, function, plan.cluster)
    if known >= training_plans.ENOUGH:
      return BatchStep(
          size, specs, place_function(placement, function).function, "alike", replicas)
    warnings.warn(
        f"batches such as {specs} take a step of their own ({known:.0%} of its ops are those of "
        "the placed one), which runs unplaced; train with batches as at the first step",
        stacklevel=4)
    return BatchStep(size, specs, function, "unplaced")


def _synchronous(function: Callable, batch: Batch, xla: bool = False) -> Callable[[], None]:
  """One step of a function on a batch that is over when it returns."""
  import tensorflow as tf

  if xla:
    function = tf.function(function, jit_compile=True)

  def step() -> None:
    function(batch)
    tf.test.experimental.sync_devices()

  return step


def _effects(function: ConcreteFunction) -> List[str]:
  """Types of ops that change more than variables, such as a py_function or an iterator."""
  graph_def = function.graph.as_graph_def()
  bodies = graph_def.library.function
  kinds = {node.op for nodes in (graph_def.node, *(each.node_def for each in bodies))
           for node in nodes} - {each.signature.name for each in bodies}
  return sorted(kind for kind in kinds if kind in PIPELINES or kind.startswith("Print")
                or not (may_be_copied(kind) or kind in _CALLS or kind.startswith("CudnnRNN")))
