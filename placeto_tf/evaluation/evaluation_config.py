"""`EvaluationConfig`: the methods, graphs, clusters and budgets of an evaluation."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, Optional, Tuple, Union

from placeto_tf.errors import PlacetoError
from placeto_tf.placing import registry
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.problem.method import Method, WithoutWeights
from placeto_tf.search.independent_runs import check_runs

REPLICAS = "replicas"  # the method of rows with several replicas


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  """The configuration of an evaluation.

  Attributes:
    graphs, clusters: specs for `load_with_replicas` and `Cluster.parse`.
    methods: names of `placeto_tf.placing.registry`.
    seeds: every method runs once with each seed.
    max_evaluations, max_seconds: the budget of each run, including the baselines from which a
      policy starts.
    budgets: further numbers of evaluations; every method that searches also runs with each.
    start: methods that need no search; if there are any, every search starts from the best of their
      placements, which counts as one evaluation, instead of its own starts.
    grouping, max_groups: settings of the grouping of ops.
    independent_runs: number of independent runs of each search side by side; see
      `placeto_tf.search.independent_runs`.
    graph_options: keyword arguments of `load_graph`.
    policy_weights: policy -> directory of its weights, or of the run of `scripts/train.py` that
      trained it, for methods that need weights or have shipped weights.
    replicas, mirrored_variables, batch_norm, check_replicas: see `PlacingConfig`. Unless `replicas`
      is 1, each graph and cluster has one more row, of `REPLICAS`: placement with replicas by
      `auto`.
  """

  graphs: Tuple[str, ...]
  clusters: Tuple[str, ...]
  methods: Tuple[str, ...]
  seeds: Tuple[int, ...] = (0,)
  max_evaluations: Optional[int] = None
  max_seconds: Optional[float] = None
  budgets: Tuple[int, ...] = ()
  grouping: str = "heavy_edge"
  max_groups: int = 128
  start: Tuple[str, ...] = ()
  independent_runs: int = 1
  graph_options: Dict[str, Any] = dataclasses.field(default_factory=dict)
  policy_weights: Dict[str, str] = dataclasses.field(default_factory=dict)
  replicas: Union[int, str] = 1
  mirrored_variables: Optional[bool] = None
  batch_norm: str = "replica"
  check_replicas: bool = True

  def __post_init__(self):
    for name in ("graphs", "clusters", "methods", "seeds"):
      if not getattr(self, name):
        raise PlacetoError(f"{name} is empty; expected at least one")
    # Errors in methods and weights are raised before any graph is read.
    for name in self.methods:
      registry.check_weights(registry.find(name), self.weights_of(registry.find(name)))
    for name in self.start:
      kind = registry.find(name).kind
      # A start has to be made quickly, from nothing.
      if kind.takes_start or kind.learned:
        valid = (method.name for method in registry.methods()
                 if not (method.kind.takes_start or method.kind.learned))
        raise PlacetoError(
            f"start {name!r} goes on from a start itself or has to learn; expected one of "
            f"{', '.join(valid)}")
    for policy in self.policy_weights:
      if policy not in registry.weighted_policies():
        raise PlacetoError(
            f"policy {policy!r} has no weights; expected one of "
            f"{', '.join(registry.weighted_policies())}")
    if self.max_evaluations is None and self.max_seconds is None:
      raise PlacetoError("no budget was given; give max_evaluations or max_seconds")
    if self.budgets and not all(0 < each <= (self.max_evaluations or 0) for each in self.budgets):
      raise PlacetoError(
          f"budgets are {', '.join(map(str, self.budgets))} and max_evaluations is "
          f"{self.max_evaluations}; expected budgets from 1 to max_evaluations")
    check_runs(self.independent_runs)
    self.placing_config(0)  # raises if a limit is not positive, or replicas are none

  def placing_config(self, seed: int) -> PlacingConfig:
    """Returns the configuration of the placement of a row of `REPLICAS`."""
    return PlacingConfig(
        max_seconds=self.max_seconds, max_evaluations=self.max_evaluations, seed=seed,
        max_groups=self.max_groups, replicas=self.replicas,
        mirrored_variables=self.mirrored_variables, batch_norm=self.batch_norm,
        check_replicas=self.check_replicas)

  def weights_of(self, method: Method) -> Optional[str]:
    """Returns the directory of a method's weights.

    A method that can learn from scratch gets no weights, because the table has other methods that
    begin with the same policy's weights.
    """
    if method.weights is None or method.weights.without is WithoutWeights.LEARN:
      return None
    return self.policy_weights.get(method.weights.policy)

  def to_json(self) -> Dict[str, Any]:
    """Returns the content of config.json."""
    return json.loads(json.dumps(dataclasses.asdict(self)))
