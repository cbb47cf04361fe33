"""Checks that TensorFlow GNN and tf-agents are installed and will find Keras 2, before importing.

Both are installed separately (`training_requirements.txt` says why), and both need Keras 2; placing
needs neither. In TensorFlow up to 2.15, `tf.keras` is Keras 2. In later versions it is Keras 3,
unless `tf-keras` is installed and an environment variable asks for it before the first import of
TensorFlow.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import sys

from placeto_tf.errors import SetupError

VARIABLE = "TF_USE_LEGACY_KERAS"
REQUIREMENTS = pathlib.Path(__file__).resolve().parent.parent / "training_requirements.txt"
_PACKAGES = ("tf_agents", "tensorflow_gnn", "tensorflow_probability", "gym", "tree")
_TRUE = ("1", "true", "True")  # the values that TensorFlow accepts


def check_training_packages() -> None:
  """Checks that the packages for training can be imported.

  Raises:
    SetupError: a package is missing, or would find Keras 3; the message has the remedy.
  """
  missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    # Where pip can resolve the extra; setup.py has the same limit.
    packages = ("'placeto_tf[train]'" if sys.version_info < (3, 12) else
                f"--no-deps -r {REQUIREMENTS}")
    raise SetupError(
        f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, which policies of "
        f"tf-agents need; install with: {sys.executable} -m pip install {packages}")
  check_legacy_keras()


def check_legacy_keras() -> None:
  """Checks that `tf.keras` is or will be Keras 2, without importing TensorFlow.

  Raises:
    SetupError: `tf.keras` is Keras 3; the message has the remedy.
  """
  value = os.environ.get(VARIABLE)
  # TensorFlow up to 2.15 comes with Keras 2, later versions with Keras 3.
  needed = not importlib.metadata.version("keras").startswith("2.")
  # Where it is not needed, `tf.keras` is Keras 2, unless the variable asks for a missing package.
  if (needed or value in _TRUE) and importlib.util.find_spec("tf_keras") is None:
    version = importlib.import_module("tensorflow").__version__
    raise SetupError(
        "the policies need Keras 2, and tf-keras is not installed; pip install "
        f"'tf-keras=={version.rpartition('.')[0]}.*'"
        + ("" if needed else f", or unset {VARIABLE} before TensorFlow is imported"))
  if not needed:
    return
  # With Keras 3 the variable must be set before the import.
  if value not in _TRUE:
    raise SetupError(
        f"{VARIABLE} is {value!r} and TensorFlow brings Keras 3, but the policies need Keras 2; "
        f"set {VARIABLE}=1 before TensorFlow is first imported")
  tensorflow = sys.modules.get("tensorflow")
  # A half-imported TensorFlow has no `keras` yet; it will read the variable, which is set.
  if tensorflow is not None and hasattr(tensorflow, "keras"):
    found = tensorflow.keras.layers.Layer.__module__
    if not found.startswith("tf_keras."):
      raise SetupError(
          f"TensorFlow was imported before {VARIABLE} was set and uses Keras 3 ({found}), but "
          f"the policies need Keras 2; set {VARIABLE}=1 before TensorFlow is first imported")
