import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.runtime.device_maps import match_devices

WORKERS = ("/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0")


def test_equal_names_in_any_spelling_match():
  assert match_devices(["/cpu:1", "/CPU:0"], ["/device:CPU:0", "/device:CPU:1"]) == {
      "/cpu:1": "/device:CPU:1", "/CPU:0": "/device:CPU:0"}


def test_devices_of_one_type_match_by_position_where_no_name_does():
  assert match_devices(["/CPU:0", "/CPU:1"], WORKERS) == dict(zip(["/CPU:0", "/CPU:1"], WORKERS))


def test_devices_of_other_types_need_a_map():
  with pytest.raises(PlacementError, match="device /GPU:0 stands for /device:GPU:0"):
    match_devices(["/GPU:0", "/GPU:1"], WORKERS)
  given = {"/GPU:0": "/job:worker/task:1/cpu:0", "/GPU:1": "/job:worker/task:0/cpu:0"}
  assert match_devices(["/GPU:0", "/GPU:1"], WORKERS, given) == {
      "/GPU:0": WORKERS[1], "/GPU:1": WORKERS[0]}


def test_maps_are_checked():
  with pytest.raises(PlacementError, match="names /device:GPU:7"):
    match_devices(["/GPU:0"], ["/device:CPU:0"], {"/GPU:0": "/CPU:0", "/GPU:7": "/CPU:0"})
  with pytest.raises(PlacementError, match="was not started"):
    match_devices(["/CPU:0"], [])
