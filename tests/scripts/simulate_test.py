"""simulate.py: a line of JSON for each placement, as the simulator says."""

import json

import pytest

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.simulation import Simulator


@pytest.fixture(name="files")
def files_fixture(placed_files):
  return placed_files("k80:2")


def test_each_placement_is_a_line_with_what_the_simulator_says(run_program, files):
  paths = [str(files / "one.json"), str(files / "two.json")]
  done = run_program(
      "simulate", f"--graph={files / 'small.meta'}", "--cluster=k80:2",
      f"--placement={','.join(paths)}")
  assert done.code == 0, done.err
  lines = [json.loads(line) for line in done.out.splitlines()]
  assert [line["placement"] for line in lines] == paths
  graph, cluster = load_graph(str(files / "small.meta")), Cluster.parse("k80:2")
  simulator = Simulator(graph, estimate_costs(graph, cluster), cluster)
  for path, line in zip(paths, lines):
    result = simulator.simulate(Placement.load(path).indices(graph, cluster))
    assert line["step_time_us"] == result.step_time_us and line["fits"]
    for name in ("busy_us", "transfer_us", "peak_memory_bytes"):
      assert line[name] == dict(zip(cluster.device_names, getattr(result, name).tolist()))
    assert line["transfer_bytes"] == result.transfer_bytes
  assert lines[0]["transfer_bytes"] == 0 < lines[1]["transfer_bytes"]


def test_a_placement_of_other_devices_ends_in_one_sentence(run_program, files):
  done = run_program(
      "simulate", f"--graph={files / 'small.meta'}", "--cluster=k80:1",
      f"--placement={files / 'two.json'}")
  assert done.code == 2 and "/GPU:1" in done.err and len(done.err.strip().splitlines()) == 1
