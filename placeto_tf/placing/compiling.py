"""`compile_step()` and `compile_placed()`: training that runs placed, if that is faster."""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.placements import Placement, keras_batches
from placeto_tf.placements.traced_steps import FunctionStep
from placeto_tf.placing import training_plans
from placeto_tf.placing.placed_training import PlacedStep, PlacedTraining
from placeto_tf.placing.training_plans import TrainingPlan

_Found = Union[Placement, TrainingPlan, str, None]


def compile_step(
    train_step: Callable,
    cluster: Union[Cluster, str, None] = None,
    *,
    args: Optional[Sequence[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    input_signature: Optional[Sequence[Any]] = None,
    batch_size: Optional[int] = None,
    placement: _Found = None,
    verify: bool = True,
    **options: Any,
) -> PlacedStep:
  """Places a training step of one's own.

  The result is called as the step and returns the same. It trains the same variables (of models,
  optimizers, metrics), which are moved to their devices, so that checkpoints, summaries and all
  else of the loop go on as before. Batches of another size than the first, such as a partial last
  one, run on the same devices.

  With the first batch the placed step and the step as it was are timed in turns, on copies of the
  variables. If the placed one is not faster, nothing is moved and the step runs as before.

  Args:
    train_step: a `tf.function`, a Python function that can be one, or a ConcreteFunction. Other
      arguments than tensors and arrays are built into the step, as in a `tf.function`.
    cluster: a `Cluster`, or text for `Cluster.parse`; with devices that this process has. Not
      needed with a placement that names its own.
    args, kwargs: example arguments, for which the step is planned now: tensors, arrays or
      TensorSpecs. Without both it is planned when it is first called.
    input_signature: `tf.TensorSpec`s of the positional arguments, whose unknown dimensions stay
      open in a trace; by default that of the `tf.function`.
    batch_size: of the batches that the step itself takes from an iterator, where its dataset does
      not tell it.
    placement: found before, instead of a search: a `TrainingPlan` of `plan_step`, a `Placement`, or
      the path of a file that one of them, or `PlacedStep.save`, wrote.
    verify: whether the placed step is timed beside the step as it was; if not, the simulation's
      word counts, and a step that is planned now is placed now.
    **options: of `place()`: method, max_seconds, max_evaluations, seed, replicas, ... With
      replicas=N or "auto" the batch is divided among replicas that share the variables; batches
      that N does not divide run on one.

  Returns:
    The placed step, which can be called, printed and saved.

  Raises:
    PlacetoError: the step cannot be traced or placed, belongs to a distribution strategy, or does
      not take these arguments; or this process lacks a device.
  """
  # All that can be wrong with cluster and placement is found before the step is traced.
  step = FunctionStep(train_step, input_signature, batch_size)
  placement = _placement(placement, options)
  cluster = training_plans.as_cluster(cluster, placement)
  training_plans.check_devices(cluster)
  placed = PlacedStep(step, cluster, options, placement=placement, verify=verify)
  # Example arguments: the plan is made now, else with the first batch.
  if args is not None or kwargs is not None:
    placed.make_plan(*training_plans.read_arguments(step, args or (), kwargs))
  return placed


def compile_placed(
    model: Any,
    cluster: Union[Cluster, str, None] = None,
    *,
    batch_size: Optional[int] = None,
    data: Any = None,
    placement: _Found = None,
    verify: bool = True,
    **options: Any,
) -> PlacedTraining:
  """Places the training step of a compiled Keras model, for `fit` and `train_on_batch`.

  Call it after `model.compile`. The model stays the same object with the same variables, which are
  moved to their devices: evaluate, predict, callbacks, metrics, checkpoints and saving go on as
  before. XLA is turned off for training that is placed (`jit_compile`). The step is the one of
  `compile_step`, and is timed and kept as it says.

  Args:
    model: a compiled model of Keras 2 or Keras 3.
    batch_size: plans now, for batches of this size of the model's inputs.
    data: plans now, for a batch like this one: (inputs, targets), as arrays, tensors or
      TensorSpecs, or a `tf.data.Dataset` of batches. Without both the step is planned when the
      first batch comes.
    cluster, placement, verify, **options: as for `compile_step`.

  Returns:
    The placed training, which can be printed; its `undo()` gives the model its own step back.

  Raises:
    PlacetoError: the model is not compiled, belongs to a distribution strategy, or its step cannot
      be traced or placed; or this process lacks a device.
  """
  keras_batches.check_trainable(model)
  placement = _placement(placement, options)
  cluster = training_plans.as_cluster(cluster, placement)
  training_plans.check_devices(cluster)
  # A model that was compiled before gets its own train function back first.
  previous = getattr(model.__dict__.get("make_train_function"), "__self__", None)
  if isinstance(previous, PlacedTraining):
    previous.undo()
  # This turns XLA off in the model, which `undo` turns on again.
  training = PlacedTraining(model, cluster, options, placement=placement, verify=verify)
  example = keras_batches.read_example(training.step, batch_size, data, wide=training.wide)
  if example is not None:
    training.make_plan(*example)
  # Past __setattr__, because Keras should not track and save this.
  model.__dict__["make_train_function"] = training.make_train_function
  return training


def _placement(placement: _Found, options: Mapping[str, Any]) -> Optional[Placement]:
  """Returns the placement that was given, loaded.

  Raises:
    PlacementError: it cannot be read, or options of a search are given, too.
  """
  if placement is not None and options:
    raise PlacementError(
        f"a placement that was found before is not searched for; leave out {', '.join(options)}")
  if isinstance(placement, TrainingPlan):
    return placement.placement
  if placement is None or isinstance(placement, Placement):
    return placement
  return Placement.load(os.fspath(placement))
