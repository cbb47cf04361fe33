"""Transfers are fitted to step times: here to those of a simulator that knows better."""

import dataclasses

import numpy as np
import pytest

from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.costs import estimate_costs
from placeto_tf.runtime import fitting
from placeto_tf.simulation import Simulator


@pytest.fixture(name="idle")
def idle_fixture(cluster):
  """What was measured between idle workers."""
  return dataclasses.replace(
      cluster, latency_us=np.zeros((2, 2)), transfer_per_destination=True, ready_order="executor",
      inline_op_types=("Identity", "NoOp"), sender_us_per_transfer=50.0,
      receiver_us_per_transfer=50.0, delivery_us=30.0, sender_us_per_byte=2e-4,
      receiver_us_per_byte=2e-4)


def test_scaled_transfers_are_found(graph, idle, monkeypatch):
  monkeypatch.setattr(fitting, "_SEARCH_EVALUATIONS", 50)
  costs = estimate_costs(graph, idle, cache=False)
  truth = Simulator(graph, costs, dataclasses.replace(
      idle, sender_us_per_transfer=90.0, receiver_us_per_transfer=90.0, delivery_us=40.0))
  before = Simulator(graph, costs, idle)
  fitted, seen = fitting.fit_transfers(
      graph, idle, costs, lambda placement: truth.simulate(placement).step_time_us, 8)
  assert len(seen) == 8
  rng = np.random.default_rng(5)
  unseen = np.stack([fitting._random(graph, idle, 9, rng) for _ in range(10)])
  expected = truth.simulate_many(unseen)[0]

  def error(simulator):
    return np.abs(simulator.simulate_many(unseen)[0] / expected - 1).mean()

  assert error(Simulator(graph, costs, fitted)) < 0.3 * error(before)


def test_placements_that_fail_are_left_out(graph, idle, monkeypatch):
  monkeypatch.setattr(fitting, "_SEARCH_EVALUATIONS", 20)
  costs = estimate_costs(graph, idle, cache=False)
  fitted, seen = fitting.fit_transfers(graph, idle, costs, lambda placement: float("inf"), 4)
  assert seen == [] and fitted is idle


def test_random_placements_obey_constraints(graph, idle):
  allowed = allowed_devices(graph, idle)
  placement = fitting._random(graph, idle, 12, np.random.default_rng(0))
  assert allowed[np.arange(graph.num_ops), placement].all()
  np.testing.assert_array_equal(placement, placement[graph.colocation])
  assert len(set(placement.tolist())) == 2
