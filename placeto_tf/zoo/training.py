"""Adds gradients and an optimizer to a loss, in the same way for every model of the zoo."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence

from placeto_tf.on_use import tf
from placeto_tf.zoo.zoo_graph import TRAIN_OP

# Name -> the optimizer, from the module `tf.compat.v1.train`. Learning rates are those of common
# recipes; a placement does not depend on them.
OPTIMIZERS: Mapping[str, Callable[[Any], tf.compat.v1.train.Optimizer]] = {
    "momentum": lambda train: train.MomentumOptimizer(0.01, momentum=0.9),
    "rmsprop": lambda train: train.RMSPropOptimizer(0.001, momentum=0.9),
    "adam": lambda train: train.AdamOptimizer(0.001),
    "adagrad": lambda train: train.AdagradOptimizer(0.01),
    "sgd": lambda train: train.GradientDescentOptimizer(0.01)}


@contextlib.contextmanager
def python_seed(seed: int) -> Iterator[None]:
  """Seeds Python's `random` inside a `with` block, and restores its state afterwards.

  Keras initialisers without a seed sample it from `random`. After the user has called
  `keras.utils.set_random_seed`, they sample it from Keras's own generator, which is replaced and
  restored in the same way.
  """
  state = random.getstate()
  holders: List[Any] = [
      getattr(sys.modules.get(f"{name}.src.backend"), "_SEED_GENERATOR", None)
      for name in ("tf_keras", "keras")]
  own = [
      (holder, holder.generator) for holder in holders
      if getattr(holder, "generator", None) is not None]
  random.seed(seed)
  for holder, _ in own:
    holder.generator = random.Random(seed)
  try:
    yield
  finally:
    random.setstate(state)
    for holder, generator in own:
      holder.generator = generator


def add_training(
    loss: tf.Tensor, updates: Sequence[tf.Operation], clip_norm: Optional[float], optimizer: str
) -> tf.Operation:
  """Adds gradients of all trainable variables, clipping and the optimizer.

  Gradient ops are not tied to their forward ops (`colocate_gradients_with_ops` is off), so they
  can be placed on their own.

  Args:
    loss: a scalar.
    updates: ops that run with every training step.
    clip_norm: global norm that gradients are clipped to, or None.
    optimizer: one of `OPTIMIZERS`.

  Returns:
    The train op, also in the collection `TRAIN_OP`.
  """
  v1 = tf.compat.v1
  with v1.name_scope("optimizer"):
    trainer = OPTIMIZERS[optimizer](v1.train)
    pairs = trainer.compute_gradients(loss, v1.trainable_variables())
    if clip_norm is not None:
      clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], clip_norm)
      pairs = list(zip(clipped, (variable for _, variable in pairs)))
    apply = trainer.apply_gradients(pairs)
  train_op = tf.group(apply, *updates, name="train")
  v1.get_default_graph().clear_collection(TRAIN_OP)  # the optimizer has put its own op there
  v1.add_to_collection(TRAIN_OP, train_op)
  return train_op
