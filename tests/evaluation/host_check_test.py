"""Tests for placeto_tf.evaluation.host_check: its figures, and a run on two worker processes."""

import pytest
import tensorflow as tf

import graph_files
from placeto_tf import place, zoo
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import MeasurementError, PlacetoError
from placeto_tf.evaluation import host_check
from placeto_tf.evaluation.host_check import GraphCheck, HostCheckConfig, Step
from placeto_tf.graphs import load_graph
from placeto_tf.placing import run
from placeto_tf.runtime.core_speed import CoreSpeed


def test_errors_and_gains_are_over_what_was_measured():
  check = GraphCheck("zoo:rnnlm", {
      "one device": Step(10_000, 12_500), "placed": Step(5_000, 6_250),
      "mirrored replicas": Step(4_000, None, "a worker was lost")})
  assert check.steps["placed"].error == pytest.approx(-0.2)
  assert check.speedup() == 2.0 and check.speedup("mirrored replicas") is None
  text = host_check.page(Cluster.parse("cpu:2"), [check, GraphCheck("mine.pb", {}, "no such file")])
  assert "| zoo:rnnlm | placed | 5.0 ms | 6.2 ms | -20% | 2.00x |" in text
  assert "a worker was lost" in text and "no such file" in text and "CPU:1" in text
  assert "check.png" in text
  assert "check.png" not in host_check.page(Cluster.parse("cpu:2"), [GraphCheck("a.pb", {}, "no")])
  assert "tf.distribute itself does not run here" in " ".join(text.split())


@pytest.mark.parametrize("graph", [*host_check.GPU_GRAPHS, *host_check.CPU_GRAPHS])
def test_graphs_that_are_checked_unasked_are_in_the_zoo(graph):
  name, options = zoo.resolve(graph.partition("zoo:")[2])
  assert name in zoo.names() and options["batch"] > 0


@pytest.mark.parametrize("wrong", [{"max_minutes": 0}, {"rounds": 0}, {"cpu_workers": 1}])
def test_a_check_without_time_or_devices_is_refused(wrong):
  with pytest.raises(PlacetoError):
    HostCheckConfig(**wrong)


def test_one_device_is_there_though_the_search_had_no_time_for_it():
  graph = load_graph(graph_files.meta_graph_def())
  result = place(graph, "k80:2", max_evaluations=1)
  assert result.baselines["single"].placement is None
  placement, step_us = host_check._on_one_device(result, "grappler")
  assert {device for device in placement.values() if "GPU" in device} == {"/GPU:0"}
  assert step_us == run.simulate(graph, "k80:2", placement).step_time_us


def test_a_tiny_graph_is_calibrated_placed_and_timed_on_two_workers(tmp_path, monkeypatch):
  # Steps count on a busy machine, too: nothing waits for its cores to be alike.
  monkeypatch.setattr(CoreSpeed, "of", classmethod(lambda cls, *_: cls(())))
  path = str(tmp_path / "tiny.pb")
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [64, 256], name="x")
    tf.add_n([tf.matmul(x, tf.ones([256, 256])) for _ in range(2)], name="y")
  with open(path, "wb") as file:
    file.write(graph.as_graph_def().SerializeToString())
  try:
    found, broken = host_check.check_host(
        HostCheckConfig(graphs=(path, "missing.pb"), max_minutes=0.2, rounds=1),
        str(tmp_path))
  except MeasurementError as error:
    pytest.skip(f"this machine starts no workers: {error}")
  assert found.failure == "" and "missing.pb" in broken.failure
  assert found.steps["one device"].measured_us > 0 and found.steps["placed"].measured_us > 0
  assert found.speedup() is not None
  text = (tmp_path / "check.md").read_text()
  assert "tiny.pb | placed" in text and "missing.pb" in text
  assert (tmp_path / "check.png").stat().st_size > 1000
