import importlib.metadata
import importlib.util
import sys

import pytest

import subprograms
from placeto_tf.encoding import training_packages
from placeto_tf.encoding.training_packages import check_training_packages
from placeto_tf.errors import SetupError


@pytest.mark.parametrize("version", [(3, 11), (3, 12)])
def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch, version):
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(
      "importlib.util.find_spec",
      lambda name: None if name in ("tf_agents", "tensorflow_gnn") else find_spec(name))
  monkeypatch.setattr(sys, "version_info", version)
  with pytest.raises(SetupError, match="tf_agents, tensorflow_gnn are missing, .* -m pip install"
                     ) as raised:
    check_training_packages()
  last = str(raised.value).rpartition(" ")[2]
  assert last == ("'placeto_tf[train]'" if version < (3, 12) else str(
      training_packages.REQUIREMENTS))
  assert "tf-agents" in training_packages.REQUIREMENTS.read_text(encoding="utf-8")


_TRAINED = ("training", "policies.placeto.training", "policies.baselines.gdp_training",
            "policies.placeto.published.training", "policies.baselines.one_shot",
            "policies.baselines.rnn", "policies.baselines.hierarchical")


def run_beside_keras_3(code):
  """What `code` prints in a process that did not choose the legacy Keras."""
  return subprograms.python("-c", code, without=["TF_USE_LEGACY_KERAS"]).stdout.split()


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
result = placeto.place(graph, placeto.Cluster.parse("k80:2"), method="placeto",
                       max_evaluations=20)
loaded = {name for name in ("tf_agents", "tensorflow_gnn", "tf_keras") if name in sys.modules}
print(result.step_time_us > 0, len(loaded))
""") == ["True", "0"]
