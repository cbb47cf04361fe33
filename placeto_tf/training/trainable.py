"""`Trainable`: the record of a policy that `scripts/train.py` trains.

`policies/NAME/__init__.py` declares TRAINABLE, a function that imports the modules for training and
returns the record. `placeto_tf.policies.trainable` finds these functions.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from placeto_tf.errors import PlacetoError
from placeto_tf.training import settings as settings_lib
from placeto_tf.training.run_config import RunConfig


def _no_weights() -> Optional[str]:
  return None


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
  pretrained: Callable[[], Optional[str]] = _no_weights

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

    Returns:
      The configuration.

    Raises:
      PlacetoError: a field is unknown, or a value is wrong.
    """
    return settings_lib.changed(settings_lib.with_values(self.config, given), settings)
