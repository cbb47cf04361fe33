"""`Method`: the record of a method, for code that lists, runs or describes methods.

A module with placers declares them beside their code, in a tuple called METHODS:

  METHODS = (Method("heft", Kind.CONSTRUCTION, unseeded(schedule_heft)),)

`declared_in` finds the tuples of a package's modules. Modules that declare methods are imported
whenever methods are listed, so they must import nothing slow: code that needs tf-agents, TensorFlow
GNN or Keras is in a module one level deeper, which `deferred` imports on use.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import io
import operator
import pkgutil
from types import ModuleType
from typing import Any, Callable, Optional, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem

# Runs a method; returns [N] int32, the device of each op in the best placement. Its arguments are
#
#   problem  evaluates placements and counts evaluations; policies start from its best placement
#   budget   a `Budget`, counted from the time when the problem was made; without it, a placer uses
#            its own default, and policies fail
#   seed     of all samples
#
# and, by keyword, the arguments that its record names: `weights`, the directory of trained weights
# or None (`Method.weights`); `runs`, the number of runs of each search side by side (`Kind.AUTO`).
Run = Callable[..., np.ndarray]
Loader = Callable[[], Run]


class Kind(enum.Enum):
  """Kinds of methods, in the order in which methods are listed."""

  AUTO = "runs other methods in turn"
  CURRENT = "the devices that the graph came with"
  BASELINE = "constructs a placement that all others are compared with"
  CONSTRUCTION = "constructs one placement, or the best of a few"
  SEARCH = "goes on from the best placement so far, or from the best construction"
  STANDALONE = "searches from starts of its own"
  POLICY = "learned; goes on from the best placement so far, or from the best construction"
  ONE_SHOT = "learned; samples whole placements, for which no other placement is a start"

  @property
  def reference(self) -> bool:
    """Returns whether a method is evaluated before any other, for comparison."""
    # The graph's own placement and the baselines.
    return self in (Kind.CURRENT, Kind.BASELINE)

  @property
  def takes_start(self) -> bool:
    """Returns whether a method starts from an earlier placement."""
    return self in (Kind.AUTO, Kind.SEARCH, Kind.POLICY)

  @property
  def searches(self) -> bool:
    """Returns whether a method searches for better placements until its budget is used up."""
    # Baselines and constructions end by themselves.
    return self.takes_start or self in (Kind.STANDALONE, Kind.ONE_SHOT)

  @property
  def learned(self) -> bool:
    """Returns whether a method is a policy."""
    return self in (Kind.POLICY, Kind.ONE_SHOT)


class WithoutWeights(enum.Enum):
  """The behaviour of a method that takes weights if none are given."""

  FAIL = "fails"
  SHIPPED = "uses the weights that ship with the package"
  LEARN = "learns from scratch, or from weights if there are any"


@dataclasses.dataclass(frozen=True)
class Weights:
  """The weights that a method takes.

  Attributes:
    policy: the policy whose training gives the weights.
    without: the method's behaviour without weights.
    load: returns a function that reads weights from a directory, or raises PlacetoError, so that
      damaged weights are found before the search begins; None if the method reads the weights.
    flags: of scripts/train.py for training such weights; by default `--policy=POLICY`.
  """

  policy: str
  without: WithoutWeights
  load: Optional[Callable[[], Callable[[str], Any]]] = None
  flags: str = ""


@dataclasses.dataclass(frozen=True)
class Method:
  """One method of placing.

  Attributes:
    name: for users and tables of results.
    kind: see `Kind`.
    load: imports the method's module and returns its `Run`.
    title: name in the comparison table; by default `name`.
    rank: order among methods of its kind.
    weights: the weights that the method takes, if any.
    in_auto: whether `auto` runs this policy.
    repeats: whether several runs of this search with different seeds find more than one run.
    control_of: the methods for which this is the control: their procedure without learned weights.
      Lists leave controls out; `evaluate.py --controls` runs the controls of its methods.
    start_rank: order among the constructions that `auto`, and a search without a start, try first.
  """

  name: str
  kind: Kind
  load: Loader
  title: str = ""
  rank: float = 100.0
  weights: Optional[Weights] = None
  in_auto: bool = False
  start_rank: Optional[float] = None
  repeats: bool = False
  control_of: Tuple[str, ...] = ()

  @property
  def in_tensorflow(self) -> bool:
    """Returns whether the method runs networks in TensorFlow.

    It does if it learns, or takes the weights of a training run.
    """
    # Of policies without weights to load, only one-shot policies have networks, which the search
    # trains.
    if self.weights is None:
      return self.kind is Kind.ONE_SHOT
    return self.weights.without is not WithoutWeights.SHIPPED


def plain(run: Run) -> Loader:
  """Returns the loader of a function that is already imported."""
  return lambda: run


def unseeded(construct: Callable[..., np.ndarray]) -> Loader:
  """Returns the loader of a function without random samples, which takes no seed."""

  def run(
      problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
    """Runs `construct`, which takes no seed.

    Returns:
      [N] int32, device of each op.
    """
    return construct(problem, budget)

  return plain(run)


def deferred(module: str, function: str, **options: Any) -> Callable[[], Any]:
  """Returns the loader of a function, such as a `Run`, whose module is imported on use.

  Args:
    module: name of the module.
    function: name of the function; "Class.function" for a method of a class.
    **options: more keyword arguments for the function.

  Returns:
    A function that imports the module and returns the function with the options bound.
  """

  def load() -> Callable:
    # Gym, which tf-agents imports, prints about its successor on stderr.
    with contextlib.redirect_stderr(io.StringIO()):
      found = importlib.import_module(module)
    return functools.partial(operator.attrgetter(function)(found), **options)

  return load


def declared_in(package: str, *more: ModuleType) -> Tuple[Method, ...]:
  """Returns the methods that the modules of a package, and others, declare, by kind, rank and name.

  Raises:
    PlacementError: two methods have the same name.
  """
  modules = (importlib.import_module(f"{package}.{info.name}")
             for info in pkgutil.iter_modules(importlib.import_module(package).__path__))
  # Enums keep the order of their definition.
  kinds = list(Kind)
  found = sorted(
      (method for module in (*modules, *more) for method in getattr(module, "METHODS", ())),
      key=lambda m: (kinds.index(m.kind), m.rank, m.name))
  for name, count in collections.Counter(method.name for method in found).items():
    if count > 1:
      raise PlacementError(f"two methods have the name {name!r}; rename one of them")
  return tuple(found)
