import dataclasses

import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.policies.placeto.config import PlacetoConfig


def test_the_papers_choices_are_the_papers():
  config = PlacetoConfig.paper()
  assert (config.discount, config.baseline, config.baseline_updates) == (1.0, "step", 10)
  assert (config.learning_rate, config.final_learning_rate) == (1e-3, 1e-4)
  assert (config.gradient_clip, config.clip_globally, config.sum_gradients) == (1.25, True, True)
  assert (config.entropy, config.final_entropy, config.advantages) == (1.0, 0.0, "raw")
  network = config.network
  assert (network.rounds, network.width, network.initial_keep) == (8, None, None)
  assert not (network.tied or network.weigh_edges or network.squash or network.mean_pooling)
  rules = config.environment
  assert (rules.num_episodes, rules.groups_per_step, rules.undo_steps) == (8, 1, 0)
  assert (rules.start, rules.order, rules.reward) == ("random", "topological", "intermediate")
  assert config.levels == ((1.0, 1.0),)


def test_tied_devices_are_a_choice_of_the_network_beside_the_papers_process():
  paper, tied = PlacetoConfig.paper(), PlacetoConfig.tied()
  assert tied.network.tied and not paper.network.tied
  assert tied.environment == dataclasses.replace(
      paper.environment, num_episodes=tied.environment.num_episodes)
  assert tied.baseline == paper.baseline


@pytest.mark.parametrize("fields,message", [
    ({"baseline": "median"}, "baseline is 'median'"), ({"discount": 1.5}, "discount is 1.5"),
    ({"steps_per_update": 0}, "steps_per_update is 0"),
    ({"values": "some"}, "values is 'some'"),
    ({"values": "all", "discount": 0.5}, "discount is 0.5"),
    ({"advantages": "best"}, "advantages is .best.")])
def test_wrong_choices_are_named(fields, message):
  with pytest.raises(PlacementError, match=message):
    PlacetoConfig(**fields)
