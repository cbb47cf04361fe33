import dataclasses

import numpy as np
import pytest

import structure_report
from placeto_tf.clusters import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.costs import estimate_costs
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.graphs import load_graph
from placeto_tf.grouping import group_ops
from random_problem import grouped_graph, random_problem


def edges(*pairs):
  return np.array(pairs, dtype=np.int32).reshape(-1, 2).T


def test_components_and_parallel_pairs_are_counted():
  ring_and_two = edges((0, 1), (1, 2), (2, 0), (2, 3))
  assert structure_report.largest_component(5, *ring_and_two) == 3
  assert structure_report.largest_component(3, *edges((0, 1), (1, 2))) == 1
  # Group 4 is alone: 4 of 10 pairs have no path.
  assert structure_report.parallel_share(5, *ring_and_two) == pytest.approx(0.4)
  assert structure_report.parallel_share(1, *edges()) == 0


def test_edges_against_the_order_are_left_out_whatever_the_graph():
  rng = np.random.default_rng(0)
  for seed in range(20):
    grouped = grouped_graph(random_problem(num_groups=9, seed=seed))
    pairs = np.unique(rng.integers(0, 9, (30, 2)), axis=0)
    sources, targets = pairs[pairs[:, 0] != pairs[:, 1]].T
    grouped = dataclasses.replace(
        grouped, sources=sources, targets=targets, edge_bytes=np.ones(len(sources)),
        order=rng.permutation(9))
    report = structure_report.report(grouped)
    assert report.seen_cyclic_share == pytest.approx(1 / 9)
    assert report.left_out_share == pytest.approx(1 - grouped.flow.mean())
    assert report.seen_parallel_share >= report.parallel_share_of_all


@pytest.mark.parametrize("spec", ["family:cifar10[1]", "zoo:rnnlm:steps=4:hidden=64"])
def test_training_graphs_are_one_cycle_of_which_policies_see_none(spec):
  graph, cluster = load_graph(spec), Cluster.parse("k80:4")
  costs, allowed = estimate_costs(graph, cluster), allowed_devices(graph, cluster)
  for max_groups in (16, 48):
    grouping = group_ops(graph, costs, allowed, max_groups=max_groups)
    anywhere = np.ones((grouping.num_groups, cluster.num_devices), dtype=bool)
    report = structure_report.report(
        GroupedGraph.build(graph, costs, cluster, grouping, anywhere))
    assert report.cyclic_share > 0.5 > 0.1 > report.parallel_share_of_all
    assert report.seen_cyclic_share == 1 / report.groups
    assert report.seen_parallel_share > 0.1
    assert report.left_out_share < 0.7
