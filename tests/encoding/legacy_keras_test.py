import importlib.metadata
import os
import subprocess
import sys

import pytest

from placeto_tf.encoding.legacy_keras import check_legacy_keras
from placeto_tf.errors import SetupError


def test_tensorflow_up_to_2_15_needs_nothing():
  check_legacy_keras({}, "2.15.1")


def test_asking_for_a_legacy_keras_that_is_neither_needed_nor_there_is_named(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(SetupError, match="unset TF_USE_LEGACY_KERAS"):
    check_legacy_keras({"TF_USE_LEGACY_KERAS": "1"}, "2.15.1")


def test_a_missing_variable_is_named_with_the_remedy():
  with pytest.raises(SetupError, match="set TF_USE_LEGACY_KERAS=1 before|pip install 'tf-keras"):
    check_legacy_keras({}, "2.21.0")


def test_a_variable_that_tensorflow_would_not_accept_is_shown():
  with pytest.raises(SetupError, match="'yes'|pip install 'tf-keras"):
    check_legacy_keras({"TF_USE_LEGACY_KERAS": "yes"}, "2.21.0")


def test_this_very_process_passes():
  check_legacy_keras()


_TRAINED = ("training", "policies.placeto", "policies.gdp", "policies.rnn", "policies.hierarchical")


def run_beside_keras_3(code):
  """What `code` prints in a process that did not choose the legacy Keras."""
  environ = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
  done = subprocess.run(
      [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  return done.stdout.split()


@pytest.mark.skipif(importlib.metadata.version("tensorflow") < "2.16", reason="has no Keras 3")
def test_what_trains_says_so_at_its_import_before_tensorflow_comes_in():
  assert run_beside_keras_3(f"""
import importlib, sys
from placeto_tf.errors import SetupError
for name in {_TRAINED}:
  try:
    importlib.import_module("placeto_tf." + name)
  except SetupError:
    print(name, "tensorflow" in sys.modules)
""") == [text for name in _TRAINED for text in (name, "False")]


def test_placing_with_the_shipped_policy_works_beside_any_keras():
  assert run_beside_keras_3("""
import sys
import tensorflow as tf
import placeto_tf as placeto
with tf.Graph().as_default() as graph:
  x = tf.compat.v1.placeholder(tf.float32, [64, 64], name="x")
  tf.add(tf.matmul(x, x), tf.matmul(x, tf.nn.relu(x)), name="y")
result = placeto.place(graph, placeto.Cluster.parse("k80:2"), method="device_pointer",
                       max_evaluations=20)
loaded = {name for name in ("tf_agents", "tensorflow_gnn", "tf_keras") if name in sys.modules}
print(result.step_time_us > 0, len(loaded))
""") == ["True", "0"]
