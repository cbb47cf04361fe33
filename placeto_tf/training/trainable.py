"""`Trainable`: the record of a policy that `scripts/train.py` trains; `RunConfig`: its settings.

`policies/NAME/__init__.py` declares TRAINABLE, a function that imports the modules for training and
returns the record. `placeto_tf.policies.trainable` finds these functions.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from placeto_tf.errors import PlacetoError, check_at_least
from placeto_tf.training import settings as settings_lib


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


@dataclasses.dataclass(frozen=True)
class Trainable:
  """A policy that can be trained.

  Attributes:
    name: the value of --policy.
    config: the policy's default configuration, without graphs.
    train: (config, root_dir, *, warm_start, progress, ray, actors) -> the last figures, see
      `trainer.train`.
    presets: name -> the record of another way to train the policy.
    pretrained: returns the directory of shipped weights; None if there are none.
  """

  name: str
  config: RunConfig
  train: Callable[..., Dict[str, float]]
  presets: Mapping[str, Trainable] = dataclasses.field(default_factory=dict)
  pretrained: Callable[[], Optional[str]] = lambda: None

  def preset(self, name: Optional[str]) -> Trainable:
    """Returns the record of a preset; None returns this record.

    Raises:
      PlacetoError: there is no such preset.
    """
    if name is None:
      return self
    if name not in self.presets:
      raise PlacetoError(
          f"policy {self.name} has no preset {name!r}; expected "
          f"{' or '.join(self.presets) or 'none: it has no presets'}")
    return self.presets[name]

  def configure(self, given: Mapping[str, Any], settings: Sequence[str] = ()) -> RunConfig:
    """Makes the configuration of a run.

    Args:
      given: field of `RunConfig` -> value.
      settings: `field=value` each, see `settings`; they win over `given`.

    Raises:
      PlacetoError: a field is unknown, or a value is wrong.
    """
    known = [field.name for field in dataclasses.fields(self.config)]
    for name in set(given) - set(known):
      raise PlacetoError(
          f"the policy {self.name} has no field {name!r}; expected one of {', '.join(known)}")
    return settings_lib.changed(settings_lib.with_values(self.config, given), settings)
