"""Placeto, and the learned baselines: network, agent, configuration, training and methods.

A policy's module declares METHODS (see `placeto_tf.problem.method`) and, if `scripts/train.py` can
train the policy, TRAINABLE (see `placeto_tf.training.trainable`; in a folder of several policies, a
dictionary by the name of the policy). Other packages may add policies in two ways: an installed
package names them as entry points of the group `placeto_tf.policies` (name of the policy ->
module), or a program calls `use`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
from types import ModuleType
from typing import Any, Callable, Dict

from placeto_tf.errors import PlacetoError

_used: Dict[str, ModuleType] = {}  # by name of the policy


def use(module: str) -> None:
  """Adds the policy of a module.

  Args:
    module: its dotted name; the last part is the name of the policy.

  Raises:
    PlacetoError: the module cannot be imported, or declares no methods.
  """
  found = _imported(module, "give the module's full name, and its folder in PYTHONPATH")
  if not hasattr(found, "METHODS") and not hasattr(found, "TRAINABLE"):
    raise PlacetoError(
        f"module {module!r} declares neither METHODS nor TRAINABLE; see docs/adding_a_policy.md")
  _used[module.rpartition(".")[2]] = found


def modules() -> Dict[str, ModuleType]:
  """Returns the modules that declare policies, by the name of the policy.

  Raises:
    PlacetoError: the module of an installed package cannot be imported.
  """
  # Later entries win: policies of `use` over installed ones, and these over the package's own.
  folders = {info.name: importlib.import_module(f"{__name__}.{info.name}")
             for info in pkgutil.iter_modules(__path__) if info.ispkg}
  return {**folders, **_installed(), **_used}


def trainable() -> Dict[str, Callable[[], Any]]:
  """Returns name -> function that imports a policy's training and gives its record."""
  # Training modules, and TensorFlow with them, are imported when a record is asked for.
  found: Dict[str, Callable[[], Any]] = {}
  for name, module in modules().items():
    given = getattr(module, "TRAINABLE", {})
    found.update(given if isinstance(given, dict) else {name: given})
  return {name: functools.partial(lambda deferred: deferred()(), found[name])
          for name in sorted(found)}


@functools.cache
def _installed() -> Dict[str, ModuleType]:
  """Returns the policies of installed packages, by name."""
  points: Any = importlib.metadata.entry_points()
  # `select` came with Python 3.10.
  group = points.select(group=__name__) if hasattr(points, "select") else points.get(__name__, ())
  return {point.name: _imported(point.value, "mend or uninstall the package that names it")
          for point in group}


def _imported(module: str, remedy: str) -> ModuleType:
  """Returns a module by its name; PlacetoError with the remedy where it cannot be imported."""
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise PlacetoError(f"the policy's module {module!r} cannot be imported ({error}); {remedy}"
                       ) from error
