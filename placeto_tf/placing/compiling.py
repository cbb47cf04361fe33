"""`compile_step()` and `compile_placed()`: place training steps, where that makes them faster."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence

from placeto_tf.placements import keras_batches
from placeto_tf.placements.traced_steps import FunctionStep
from placeto_tf.placing import training_plans
from placeto_tf.placing.placed_training import PlacedStep, PlacedTraining
from placeto_tf.placing.training_plans import Devices, Found


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
