"""`--replicas="1 x 8"` and what `auto` tries: pipelines from the command to the written graph."""

import dataclasses

import pytest
import tensorflow as tf
from pipeline_graphs import BATCH, source

import placeto_tf as placeto
import training_models
from placeto_tf.placing import replica_candidates
from placeto_tf.placing.tables import replica_table
from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.replication.replicated_graph import pipeline_strategy, strategy_name
from placeto_tf.simulation import Simulator


def placed(replicas, cluster="k80:2", batch=BATCH, **options):
  return placeto.place(
      source(batch), cluster, replicas=replicas, max_evaluations=60, max_groups=8, **options)


def test_a_pipeline_that_is_asked_for_is_placed_checked_and_named():
  found = placed("1 x 4")
  chosen = found.replication.chosen
  assert (chosen.strategy, chosen.groups, chosen.micro_batches) == ("1 x 4", 1, 4)
  assert chosen.order and found.replication.check.checked
  assert found.graph is chosen.graph
  assert any(line.startswith("1 x 4 ") and "placed" in line
             for line in replica_table(found.replication))
  again = Simulator(found.graph, found.costs, found.cluster).simulate(found.indices)
  assert again.step_time_us == pytest.approx(found.step_time_us)


def test_the_order_stands_in_the_graph_that_is_written():
  found = placed("1 x 2", check_replicas=False)
  nodes = {node.name: node for node in found.placement.apply(
      found.graph.origin.tf_graph.as_graph_def()).node}
  for awaited, waiting in found.replication.chosen.order:
    assert f"^{awaited}" in nodes[waiting].input
    assert nodes[awaited].device and nodes[waiting].device


def test_what_replicas_have_no_memory_for_becomes_a_pipeline():
  """Of 192 MB of weights and momentum little more than a half fits on a device."""
  cluster = placeto.Cluster.parse("k80:2")
  small = dataclasses.replace(cluster, devices=tuple(
      device if device.host else dataclasses.replace(device, memory_bytes=270 << 20)
      for device in cluster.devices))
  found = placeto.place(
      source(2048, width=2048), small, replicas="auto", max_evaluations=40, max_groups=8,
      check_replicas=False)
  assert found.replication.chosen.strategy == "1 x 8" and found.fits
  rows = found.replication.rows
  assert not rows["2"].fits and not rows["2 mirrored"].fits
  assert found.step_time_us < 0.75 * rows["1"].step_time_us


def test_a_pipeline_is_not_tried_where_its_estimate_is_above_what_is_reached():
  cluster = placeto.Cluster.parse("k80:2")

  def tried(graph, best_us):
    return list(replica_candidates.worth_trying(graph, graph.replicas(2), cluster, best_us))

  assert tried(source(), 1e-9) == []
  assert tried(source(), float("inf")) == [(1, 8)]
  assert tried(source(batch=36), float("inf")) == [(1, 4)]  # 8 do not divide it


def test_live_functions_get_no_pipeline():
  weights = tf.Variable(tf.ones([4, 4]))
  live = ReplicaSource(training_models.function(weights, 8))
  cluster = placeto.Cluster.parse("k80:2")
  assert not list(replica_candidates.worth_trying(
      live, live.replicas(2), cluster, float("inf")))


def test_strategies_are_read_as_they_are_named():
  for groups, count in ((1, 8), (2, 4)):
    assert pipeline_strategy(strategy_name(groups * count, False, count)) == (groups, count)
  assert pipeline_strategy("2x8") == (2, 8)
  for other in (4, "4", "auto", "4 mirrored", "0 x 8", "8 x 1", "x 8"):
    assert pipeline_strategy(other) is None
