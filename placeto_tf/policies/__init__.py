"""Policies, one folder each: network, agent, configuration, how it is trained, its methods.

A folder declares METHODS (see `placeto_tf.problem.method`) and, where `scripts/train.py` trains it,
TRAINABLE (see `placeto_tf.training.trainable`).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any, Callable, Dict


def trainable() -> Dict[str, Callable[[], Any]]:
  """Policy -> what imports its training and returns its `Trainable`, by name."""
  folders = (info.name for info in pkgutil.iter_modules(__path__) if info.ispkg)
  declared = {name: getattr(importlib.import_module(f"{__name__}.{name}"), "TRAINABLE", None)
              for name in folders}
  return {name: functools.partial(_record, declared[name])
          for name in sorted(declared) if declared[name] is not None}


def _record(deferred: Any) -> Any:
  return deferred()()
