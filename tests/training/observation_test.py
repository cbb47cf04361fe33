from placeto_tf.training import observation


def test_shapes_depend_on_groups_only():
  spec = observation.observation_spec(num_groups=7, num_devices=3)
  shapes = {name: entry.shape for name, entry in spec.items()}
  assert shapes == {"placement": (7,), "current": (1,), "visited": (7,), "start": (7,),
                    "graph": (1,)}
  assert spec["placement"].maximum == 2 and spec["current"].maximum == 6


def test_an_action_is_a_device_for_the_current_group():
  spec = observation.action_spec(num_devices=3)
  assert spec.shape == (1,) and (spec.minimum, spec.maximum) == (0, 2)
