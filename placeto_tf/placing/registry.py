"""Finds all methods: `auto`, and the methods of modules in `search` and folders in `policies`.

There is no list of methods. Every module that declares METHODS (see `placeto_tf.problem.method`) is
found, and its methods can be run, evaluated and shown.
"""

from __future__ import annotations

import difflib
import sys
from typing import Optional, Sequence, Tuple

from placeto_tf import policies
from placeto_tf.errors import PlacementError
from placeto_tf.problem.method import Kind, Method, WithoutWeights, declared_in, deferred
from placeto_tf.search.starts import start_methods

DATA_PARALLEL = "data_parallel"  # a row of the table that is no method
_AUTO = "placeto_tf.placing.auto", "run_auto"
# Declared here, because `auto` needs this module to find the methods that it runs.
METHODS = (
    Method("auto", Kind.AUTO, deferred(*_AUTO), rank=1),
    Method("auto_unlearned", Kind.AUTO, deferred(*_AUTO, learned=False), rank=2,
           control_of=("auto",)),
)


def methods(*, controls: bool = False) -> Tuple[Method, ...]:
  """Returns all methods, by kind, rank and name.

  Args:
    controls: whether to include controls.
  """
  every = declared_in("placeto_tf.search", sys.modules[__name__], *policies.modules().values())
  return tuple(method for method in every if controls or not method.control_of)


def with_controls(names: Sequence[str]) -> Tuple[str, ...]:
  """Returns names of methods, each followed by the names of its controls."""
  known = methods(controls=True)
  return tuple(dict.fromkeys(
      # Each method, then its controls, without duplicates.
      found for name in names
      for found in (name, *(each.name for each in known if name in each.control_of))))


def names() -> Tuple[str, ...]:
  """Returns the names of all methods, in the same order."""
  return tuple(method.name for method in methods())


def find(name: str) -> Method:
  """Finds the method of a name, which may be a control.

  Raises:
    PlacementError: the name is unknown. The message lists similar names, and all names.
  """
  known = {method.name: method for method in methods(controls=True)}
  if name not in known:
    # Show similar names first, because the name may be misspelled.
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}? The methods are" if near else "expected one of"
    raise PlacementError(f"method {name!r} is not known; {hint} {', '.join(names())}")
  return known[name]


def references() -> Tuple[Method, ...]:
  """Returns the methods that are evaluated before any other: "current", then the baselines."""
  return tuple(method for method in methods() if method.kind.reference)


def search_of_auto(learned: bool = True) -> Method:
  """Returns the policy that `auto` runs; without one, or if not `learned`, annealing."""
  return next((method for method in methods() if learned and method.in_auto), find("annealing"))


def parts_of_auto(*, learned: bool = True) -> Tuple[Method, ...]:
  """Returns the methods that `auto` runs, in order; a policy takes turns with annealing."""
  parts = (*references(), *constructions(), search_of_auto(learned), find("annealing"))
  return tuple(dict.fromkeys(parts))


def constructions() -> Tuple[Method, ...]:
  """Returns the constructions, besides the references, that searches start from, by rank."""
  return tuple(method for method in start_methods() if not method.kind.reference)


def weighted_policies() -> Tuple[str, ...]:
  """Returns the names of policies with weights that some method uses, sorted."""
  return tuple(sorted({
      method.weights.policy for method in methods() if method.weights is not None}))


def check_weights(method: Method, policy_weights: Optional[str]) -> None:
  """Checks that weights are given exactly if the method takes weights.

  Args:
    method: the method to run.
    policy_weights: directory of weights, or None.

  Raises:
    PlacementError: weights are missing, or the method takes none.
  """
  if policy_weights is not None and method.weights is None:
    takers = ", ".join(each.name for each in methods() if each.weights is not None)
    raise PlacementError(
        f"method {method.name!r} takes no policy_weights; expected one of {takers}")
  if policy_weights is None and method.weights is not None and (
      method.weights.without is WithoutWeights.FAIL):
    raise PlacementError(
        f"method {method.name!r} needs policy_weights, the directory of a run of placeto-train "
        f"{method.weights.flags or f'--policy={method.weights.policy}'}")


def read_weights(method: Method, policy_weights: Optional[str]) -> None:
  """Checks that the given weights of a method can be read.

  Args:
    method: the method to run.
    policy_weights: directory of weights, or None.

  Raises:
    PlacetoError: the weights cannot be read.
  """
  if policy_weights is not None and method.weights is not None and method.weights.load is not None:
    method.weights.load()(policy_weights)
