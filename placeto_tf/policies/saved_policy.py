"""Writes policies as SavedModels, which run without this package."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from placeto_tf.errors import PlacetoError, one_line


class _NoMetadata(dict):
  """Empty metadata that tf.Module does not wrap, unlike a plain dictionary; see `_unwrap`."""

  def __bool__(self) -> bool:
    return True  # PolicySaver would replace false metadata by a plain dictionary


def save_server(network: tf.Module, directory: str) -> None:
  """Writes a SavedModel that places any graph and needs TensorFlow alone.

  Its signature and its function `place` take a scalar string, the serialized GraphTensor of
  `encoding/schema.pbtxt`, and return the outputs of `serve`.

  Args:
    network: has a method `serve`, see `PlacetoNetwork.serve`.
    directory: of the SavedModel.
  """
  module = tf.Module()
  module.weights = list(network.variables)  # a SavedModel must track the variables of `serve`
  module.place = tf.function(
      network.serve, input_signature=[tf.TensorSpec([], tf.string, "serialized")], autograph=False)
  tf.saved_model.save(module, directory, signatures=module.place)


def save_policy(policy: tf.Module, directory: str) -> None:
  """Writes a `TFPolicy` with dense observations by tf-agents' `PolicySaver`."""
  from tf_agents.policies import policy_saver  # after the checks of its packages
  _unwrap(policy)
  with warnings.catch_warnings():
    # Hides warnings about functions beside `action` whose outputs have distributions.
    warnings.filterwarnings("ignore", "Encoding a StructuredValue", UserWarning)
    policy_saver.PolicySaver(policy, metadata=_NoMetadata()).save(directory)


def load_saved_policy(directory: str) -> Any:
  """Loads a policy that tf-agents' `PolicySaver` wrote, as a policy of NumPy arrays.

  Args:
    directory: of the SavedModel.

  Raises:
    PlacetoError: it cannot be read.
  """
  from tf_agents.policies import py_tf_eager_policy
  try:
    return py_tf_eager_policy.SavedModelPyTFEagerPolicy(directory, load_specs_from_pbtxt=True)
  except (OSError, ValueError, tf.errors.OpError) as error:
    raise PlacetoError(
        f"the policy in {directory!r} cannot be read ({one_line(error)}); write it with tf-agents' "
        "PolicySaver") from error


def _unwrap(policy: tf.Module) -> None:
  """Lets a policy keep its dictionaries as they are; see `unwrapped`."""
  # All specs with which PolicySaver traces functions.
  for name in ("_time_step_spec", "_info_spec", "_policy_step_spec", "_trajectory_spec"):
    if name in vars(policy):
      vars(policy)[name] = unwrapped(vars(policy)[name])


def unwrapped(value: Any) -> Any:
  """Returns a nest whose dictionaries are plain, without tf.Module's wrappers.

  TensorFlow 2.15 cannot trace a wrapped one beside typing-extensions 4.6 and later.

  Args:
    value: a nest of dictionaries and named tuples.
  """
  if isinstance(value, dict):  # TensorFlow's wrapper of a dictionary is no Mapping
    return {name: unwrapped(each) for name, each in value.items()}
  if isinstance(value, tuple) and hasattr(value, "_fields"):  # named tuples, such as TimeStep
    # Only _replace sets the fields of a wrapped tuple.
    fields = {name: unwrapped(getattr(value, name)) for name in value._fields}
    return value._replace(**fields)  # type: ignore[attr-defined]
  return value
