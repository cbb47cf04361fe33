"""`RunConfig`: the fields that the configurations of all training runs share."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, Tuple

from placeto_tf.errors import PlacetoError, check_at_least


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """Graphs, clusters and duration of a run; subclasses add the settings of a policy.

  Attributes:
    graphs, clusters: specs of single graphs and of clusters, as `load_graph` and `Cluster.parse`
      take them.
    held_out: specs of graphs on which the policy is evaluated during training, on `watch_cluster`.
    iterations: number of updates.
    checkpoint_every, watch_every: numbers of iterations.
    seed: of all samples.
  """

  graphs: Tuple[str, ...]
  clusters: Tuple[str, ...] = ("k80:4",)
  held_out: Tuple[str, ...] = ()
  watch_cluster: str = "k80:4"
  iterations: int = 1000
  checkpoint_every: int = 50
  watch_every: int = 100
  seed: int = 0

  def __post_init__(self) -> None:
    check_at_least(
        1, self, "iterations", "checkpoint_every", "watch_every", error_type=PlacetoError)

  def to_json(self) -> Dict[str, Any]:
    """Returns the content of config.json: tuples are lists."""
    found: Dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
    return found
