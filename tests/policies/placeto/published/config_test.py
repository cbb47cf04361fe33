import dataclasses

import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.policies.placeto.config import PlacetoConfig


def test_the_papers_choices_are_the_papers():
  config = PlacetoConfig.paper()
  assert (config.credit, config.steps_per_update) == ("returns", None)
  assert (config.learning_rate, config.final_learning_rate) == (1e-3, 1e-4)
  assert config.sum_gradients
  assert (config.entropy, config.final_entropy) == (0.003, 0.0)
  network = config.network
  assert (network.rounds, network.width, network.initial_keep) == (8, None, None)
  assert (network.transform_layers, network.head_scale) == (2, 1.0)
  assert not (network.tied or network.weigh_edges or network.squash or network.mean_pooling)
  rules = config.environment
  assert (rules.num_episodes, rules.groups_per_step, rules.undo) == (8, 1, False)
  assert (rules.start, rules.order, rules.reward) == ("given", "topological", "intermediate")
  assert config.levels == ((1.0, 1.0),)


def test_tied_devices_are_a_choice_of_the_network_beside_the_papers_process():
  paper, tied = PlacetoConfig.paper(), PlacetoConfig.tied()
  assert tied.network.tied and not paper.network.tied
  assert tied.environment == dataclasses.replace(
      paper.environment, num_episodes=tied.environment.num_episodes, start="random")


@pytest.mark.parametrize("fields,message", [
    ({"credit": "some"}, "credit is 'some'"), ({"steps_per_update": 0}, "steps_per_update is 0"),
    ({"credit": "returns"}, "steps_per_update is 16; expected none"),
    ({"levels": ()}, "levels is empty")])
def test_wrong_choices_are_named(fields, message):
  with pytest.raises(PlacementError, match=message):
    PlacetoConfig(**fields)
