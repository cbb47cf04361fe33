"""Tests for placeto_tf.evaluation.host_check: its figures, and a run on two worker processes."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import graph_files
from placeto_tf import zoo
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import MeasurementError
from placeto_tf.evaluation import host_check
from placeto_tf.runtime import microbenchmarks


def test_errors_and_gains_are_over_what_was_measured():
  rows = pd.DataFrame([
      ("zoo:rnnlm", "one device", 10_000, 12_500, ""), ("zoo:rnnlm", "placed", 5_000, 6_250, ""),
      ("zoo:rnnlm", "mirrored replicas", 4_000, np.nan, "a worker | was lost"),
      ("mine.pb", "-", np.nan, np.nan, "no such file")],
      columns=["graph", "way", "predicted_us", "measured_us", "failure"])
  text = host_check.page(Cluster.parse("cpu:2"), rows)
  assert "| zoo:rnnlm | placed | 5.0 ms | 6.2 ms | -20% | 2.00 |" in text
  assert "| zoo:rnnlm | mirrored replicas | 4.0 ms | a worker / was lost |  |  |" in text
  assert "| mine.pb | - |  | no such file |  |  |" in text and "CPU:1" in text
  assert "tf.distribute itself does not run here" in " ".join(text.split())


@pytest.mark.parametrize("graph", [*host_check.GPU_GRAPHS, *host_check.CPU_GRAPHS])
def test_graphs_that_are_checked_unasked_are_in_the_zoo(graph):
  name, options = zoo.resolve(graph.partition("zoo:")[2])
  assert name in zoo.names() and options["batch"] > 0


def test_a_tiny_graph_is_calibrated_placed_and_timed_on_two_workers(tmp_path, monkeypatch):
  monkeypatch.setattr(host_check, "_ROUNDS", 1)
  monkeypatch.setattr(microbenchmarks, "_WORK", 3)
  monkeypatch.setattr(microbenchmarks, "_CHAIN", 50)
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [64, 256], name="x")
    tf.add_n([tf.matmul(x, tf.ones([256, 256])) for _ in range(2)], name="y")
  path = graph_files.write(graph.as_graph_def(), tmp_path / "tiny.pb")
  try:
    found = host_check.check_host([path], ["missing.pb"], str(tmp_path), max_minutes=0.03)
  except MeasurementError as error:
    pytest.skip(f"this machine starts no workers: {error}")
  by_way = found.set_index("way")
  assert "missing.pb" in by_way.failure["-"]
  for way in ("one device", "placed"):
    assert by_way.measured_us[way] > 0 and by_way.predicted_us[way] > 0 and not by_way.failure[way]
  text = (tmp_path / "check.md").read_text()
  assert "tiny.pb | placed" in text and "missing.pb" in text
