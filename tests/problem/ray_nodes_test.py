"""A node that dies in the middle of an evaluation costs what it was doing, and nothing else."""

import pandas as pd
import pytest

import graph_files
from placeto_tf.evaluation import EvaluationConfig, evaluate

pytest.importorskip("ray", reason="Ray, an optional extra, is not installed")


pytestmark = pytest.mark.heavy  # Ray's own test cluster needs a quiet machine to start three nodes


@pytest.fixture(name="cluster")
def cluster_fixture():
  """A head that runs no tasks; nodes of one core each are added to it."""
  from ray.cluster_utils import Cluster

  cluster = Cluster(
      initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
  yield cluster
  cluster.shutdown()


def test_all_rows_are_there_and_equal_although_a_node_is_killed(cluster, tmp_path):
  graph = str(tmp_path / "graph.meta")
  with open(graph, "wb") as file:
    file.write(graph_files.meta_graph_def().SerializeToString())
  config = EvaluationConfig(
      graphs=(graph,), clusters=("k80:2",), methods=("annealing",), seeds=(0, 1, 2, 3),
      max_evaluations=2000, max_groups=6)
  here = evaluate(config, str(tmp_path / "here"))
  doomed = cluster.add_node(num_cpus=1)
  cluster.add_node(num_cpus=1)
  killed = []

  def kill_once(*_):
    if not killed:
      killed.append(True)
      cluster.remove_node(doomed, allow_graceful=False)

  there = evaluate(config, str(tmp_path / "there"), ray=cluster.address, progress=kill_once)
  assert killed and len(there) == 4
  pd.testing.assert_frame_equal(here.drop(columns="seconds"), there.drop(columns="seconds"))
