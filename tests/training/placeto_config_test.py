import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.training.placeto_config import PlacetoConfig


def test_the_paper_departs_in_nothing():
  config = PlacetoConfig.paper()
  assert (config.discount, config.baseline, config.baseline_episodes) == (1.0, "step", 10)
  assert (config.learning_rate, config.gradient_clip, config.entropy) == (1e-3, 1.25, 1.0)
  assert (config.network.rounds, config.network.initial_keep) == (8, None)
  assert not (config.network.device_scores or config.network.weigh_edges or config.network.squash)
  rules = config.environment
  assert (rules.groups_per_step, rules.undo_steps, rules.start) == (1, 0, "given")
  assert config.levels == ((1.0, 1.0),)


@pytest.mark.parametrize("fields,message", [
    ({"baseline": "median"}, "baseline is 'median'"), ({"discount": 1.5}, "discount is 1.5"),
    ({"steps_per_update": 0}, "steps_per_update is 0"),
    ({"advantages": "best"}, "advantages is .best.")])
def test_wrong_choices_are_named(fields, message):
  with pytest.raises(PlacementError, match=message):
    PlacetoConfig(**fields)
