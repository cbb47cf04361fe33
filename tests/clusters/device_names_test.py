import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters import Cluster, Device
from placeto_tf.clusters.device_names import canonical, find_device, match


def cluster_of(*names):
  devices = tuple(Device(name, "GPU" if "GPU" in name else "CPU", 2**30) for name in names)
  d = len(devices)
  return Cluster(devices, np.ones((d, d)), np.zeros((d, d)))


LOCAL = cluster_of("/GPU:0", "/GPU:1", "/CPU:0")
WORKERS = cluster_of("/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0")


@pytest.mark.parametrize("text, index", [
    ("/GPU:1", 1), ("/device:GPU:1", 1), ("/gpu:1", 1), ("/device:CPU:0", 2), ("/cpu", 2),
    ("/job:localhost/replica:0/task:0/device:GPU:1", 1), ("/GPU:*", 0), ("", 0),
])
def test_every_spelling_of_tensorflow_finds_its_device(text, index):
  assert find_device(LOCAL.device_names, text) == index


def test_the_task_tells_devices_of_workers_apart():
  assert find_device(WORKERS.device_names, "/job:worker/task:1") == 1
  assert find_device(WORKERS.device_names, "/job:worker/replica:0/task:1/device:CPU:0") == 1


@pytest.mark.parametrize("text", ["/GPU:2", "/TPU:0", "a device?", "/job:/GPU:0"])
def test_a_device_that_is_not_there_is_not_found(text):
  assert find_device(LOCAL.device_names, text) is None


@pytest.mark.parametrize("name, expected", [
    ("/GPU:0", "/device:GPU:0"),
    ("/gpu:01", "/device:GPU:1"),
    ("/device:CPU:2", "/device:CPU:2"),
    ("/DEVICE:cpu:2", "/device:CPU:2"),
    ("/job:worker/task:1/device:CPU:0", "/job:worker/task:1/device:CPU:0"),
    ("/job:worker/replica:0/task:1/cpu:0", "/job:worker/task:1/device:CPU:0"),
    ("/job:worker/replica:1/task:1/CPU:0", "/job:worker/replica:1/task:1/device:CPU:0"),
    ("/device:XLA_GPU:0", "/device:XLA_GPU:0"),
])
def test_every_spelling_has_one_canonical_form_that_tensorflow_parses(name, expected):
  assert canonical(name) == expected
  assert canonical(expected) == expected
  spec = tf.DeviceSpec.from_string(expected)
  assert spec.device_index is not None and spec.to_string() == expected


@pytest.mark.parametrize("name", [
    "", "GPU:0", "/GPU", "/job:worker", "/GPU:x", "/GPU:-1", "/GPU:0/CPU:0", "/GPU:0\n", "gpu"])
def test_what_names_no_single_device_has_no_canonical_form(name):
  assert canonical(name) is None


def test_names_are_matched_to_the_clusters():
  assert match(
      ["/device:GPU:1", "/CPU:0", "/GPU:5"], ["/GPU:0", "/GPU:1", "/CPU:0"]) == {
          "/device:GPU:1": 1, "/CPU:0": 2, "/GPU:5": None}
