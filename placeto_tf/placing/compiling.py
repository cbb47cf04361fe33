"""`compile_placed()`: a compiled Keras model whose training step runs placed, if that is faster."""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import ClusterError, PlacementError
from placeto_tf.placements import Placement, keras_batches
from placeto_tf.placing import training_plans
from placeto_tf.placing.placed_training import PlacedTraining
from placeto_tf.placing.training_plans import TrainingPlan


def compile_placed(
    model: Any,
    cluster: Union[Cluster, str, None] = None,
    *,
    batch_size: Optional[int] = None,
    data: Any = None,
    placement: Union[Placement, TrainingPlan, str, None] = None,
    verify: bool = True,
    **options: Any,
) -> PlacedTraining:
  """Places the training step of a compiled Keras model, for `fit` and `train_on_batch`.

  Call it after `model.compile`. The model stays the same object with the same variables, which are
  moved to their devices: evaluate, predict, callbacks, metrics, checkpoints and saving go on as
  before. XLA is turned off for training that is placed (`jit_compile`). Batches of another size
  than the first, such as a partial last one, run on the same devices, op by op.

  With the first batch the placed step and the step as it was are timed in turns, on copies of the
  variables. If the placed one is not faster, nothing is moved and the model trains as before.

  Args:
    model: a compiled model of Keras 2 or Keras 3.
    cluster: a `Cluster`, or text for `Cluster.parse`; with devices that this process has. Not
      needed with a placement that names its own.
    batch_size: plans now, for batches of this size of the model's inputs.
    data: plans now, for a batch like this one: (inputs, targets), as arrays, tensors or
      TensorSpecs, or a `tf.data.Dataset` of batches. Without both the step is planned when the
      first batch comes.
    placement: found before, instead of a search: a `TrainingPlan`, a `Placement`, or the path of
      a file that one of them, or `PlacedTraining.save`, wrote.
    verify: whether the placed step is timed beside the step as it was; if not, the simulation's
      word counts, and a step that is planned now is placed now.
    **options: of `place()`: method, max_seconds, max_evaluations, seed, replicas, ... With
      replicas=N or "auto" the batch is divided among replicas that share the variables; batches
      that N does not divide run on one.

  Returns:
    The placed training, which can be printed; its `undo()` gives the model its own step back.

  Raises:
    PlacetoError: the model is not compiled, belongs to a distribution strategy, or its step cannot
      be traced or placed; or this process lacks a device.
  """
  keras_batches.check_trainable(model)
  if isinstance(placement, TrainingPlan):
    placement = placement.placement
  elif placement is not None and not isinstance(placement, Placement):
    placement = Placement.load(os.fspath(placement))
  cluster = _cluster(cluster, placement)
  if placement is not None and options:
    raise PlacementError(
        f"a placement that was found before is not searched for; leave out {', '.join(options)}")
  training_plans.check_devices(cluster)
  previous = getattr(model.__dict__.get("make_train_function"), "__self__", None)
  if isinstance(previous, PlacedTraining):
    previous.undo()
  training = PlacedTraining(model, cluster, options, placement=placement, verify=verify)
  example = training_plans.read_example(model, batch_size, data, wide=training.wide)
  if example is not None:
    training.make_plan(*example)
  # Past __setattr__, because Keras should not track and save this.
  model.__dict__["make_train_function"] = training.make_train_function
  return training


def _cluster(cluster: Union[Cluster, str, None], placement: Optional[Placement]) -> Cluster:
  """The devices that were given, or those of the placement."""
  if isinstance(cluster, Cluster):
    return cluster
  if cluster is not None:
    return Cluster.parse(cluster)
  if placement is None or placement.cluster is None:
    raise ClusterError(
        "no cluster is given; name this process's devices with \"local\", or others, such as "
        "\"v100:4\"")
  return Cluster.from_json(placement.cluster)
