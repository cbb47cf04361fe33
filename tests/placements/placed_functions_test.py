import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement, place_function

_PROGRAM = pathlib.Path(__file__).with_name("eager_devices.py")
_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", name="found")
def found_fixture():
  """What `eager_devices.py` saw on two CPU devices."""
  path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
  done = subprocess.run(
      [sys.executable, str(_PROGRAM)], capture_output=True, text=True, timeout=300,
      env={**os.environ, "PYTHONPATH": path}, check=False)
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout)


@pytest.mark.parametrize("case", ["saved_model_0", "saved_model_1", "stayed", "recreated"])
def test_results_stay_the_same_bit_for_bit(found, case):
  assert found[case]["equal"] == [True] * 4


@pytest.mark.parametrize("case", ["saved_model_0", "saved_model_1", "recreated"])
def test_every_op_runs_where_it_is_placed(found, case):
  assert found[case]["ops"] > 200
  assert 0.3 < found[case]["share"] < 0.7
  assert found[case]["elsewhere"] == [] and found[case]["unseen"] == []


@pytest.mark.parametrize("case", ["saved_model_0", "saved_model_1"])
def test_variables_of_a_loaded_model_are_on_their_devices(found, case):
  assert found[case]["check"] == []
  assert found[case]["variables"] == found[case]["wanted"]


def test_variables_that_stay_keep_the_ops_that_touch_them(found):
  case = found["stayed"]
  moved = {name for name, device in case["wanted"].items() if device == "CPU:1"}
  assert moved and set(case["stayed"]) == moved
  assert case["elsewhere"] and all("pow" not in op for op in case["elsewhere"])
  assert case["unseen"] == []
  assert case["model_count"] == 4.0  # the model itself was trained
  assert "stay elsewhere" in case["report"]


def test_recreated_variables_are_copies_on_their_devices(found):
  case = found["recreated"]
  assert case["recreated"] and set(case["recreated"].values()) == {"CPU:1"}
  assert set(case["recreated"]) | set(case["in_place"]) == set(case["wanted"])
  assert "made anew" in case["report"]


def _concrete(**options):
  return tf.function(lambda x: tf.tanh(x) + 1.0, **options).get_concrete_function(
      tf.TensorSpec([2], tf.float32))


def _placement(function):
  graph = load_graph(function)
  return Placement.from_indices(graph, Cluster.parse("cpu:1"), np.zeros(graph.num_ops, np.int32))


def test_applying_to_a_function_gives_a_new_one():
  function = _concrete()
  placed = _placement(function).apply(function)
  assert placed is not function
  np.testing.assert_array_equal(placed(tf.zeros([2])), function(tf.zeros([2])))
  assert {op.device for op in placed.graph.get_operations()} == {"/device:CPU:0"}
  assert not any(op.device for op in function.graph.get_operations())


def test_a_function_that_xla_compiles_is_refused():
  function = _concrete(jit_compile=True)
  with pytest.raises(PlacementError, match="compiled by XLA"):
    place_function(Placement({}, ("/CPU:0",)), function)


def test_an_op_without_a_device_is_named():
  with pytest.raises(PlacementError, match="no device for op 'x'"):
    place_function(Placement({"other": "/CPU:0"}, ("/CPU:0",)), _concrete())
