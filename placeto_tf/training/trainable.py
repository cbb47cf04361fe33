"""`Trainable`: the record of a policy that `scripts/train.py` trains.

`policies/NAME/__init__.py` declares TRAINABLE, a function that imports what training needs and
returns the record. `placeto_tf.policies.trainable` finds these.
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
    config: the defaults of the policy, still without graphs.
    train: (config, root_dir, *, warm_start, progress) -> the last figures; where it is
      `on_ray` also with `ray` and `actors`, see `trainer.train`.
    on_ray: whether actors can collect its experience.
    presets: name -> the record of another way to train the policy.
    pretrained: gives the directory of shipped weights; None where there are none.
  """

  name: str
  config: RunConfig
  train: Callable[..., Dict[str, float]]
  on_ray: bool = False
  presets: Mapping[str, Trainable] = dataclasses.field(default_factory=dict)
  pretrained: Callable[[], Optional[str]] = _no_weights

  def preset(self, name: Optional[str]) -> Trainable:
    """Returns the record of a preset; with None, this one.

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
      PlacetoError: an unknown field, or a wrong value.
    """
    return settings_lib.changed(settings_lib.with_values(self.config, given), settings)

  def train_on(
      self, ray: Optional[str], actors: Optional[int], config: RunConfig, root_dir: str,
      **options: Any) -> Dict[str, float]:
    """Trains, with experience collected on Ray where that is given.

    Args:
      ray: where actors collect; None is in this process.
      actors: how many; only with `ray`.
      config: of the run.
      root_dir: of the run.
      **options: of `train`.

    Returns:
      The last figures of the run, by name.

    Raises:
      PlacetoError: the policy cannot be trained there, or there are actors and no Ray; and the
        errors of `train`.
    """
    if ray is None:
      if actors is not None:
        raise PlacetoError(f"actors is {actors} without ray, which they are of; give it, or none")
      return self.train(config, root_dir, **options)
    if not self.on_ray:
      raise PlacetoError(
          f"policy {self.name} collects and learns in one process; leave ray out")
    return self.train(config, root_dir, ray=ray, actors=actors, **options)
