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
      cluster, latency_us=np.full((2, 2), 30.0), transfer_per_destination=True,
      ready_order="executor", inline_op_types=("Identity", "NoOp"), sender_us_per_transfer=50.0,
      receiver_us_per_transfer=50.0, sender_us_per_byte=2e-4, receiver_us_per_byte=2e-4)


@pytest.mark.parametrize("busy_slowdown", [0.0, 0.4])
def test_scaled_transfers_and_kernels_are_found(graph, idle, busy_slowdown, monkeypatch):
  monkeypatch.setattr(fitting, "_SEARCH_EVALUATIONS", 50)
  costs = estimate_costs(graph, idle, cache=False)
  truth = Simulator(graph, fitting._times(costs, 1.2), dataclasses.replace(
      idle, sender_us_per_transfer=90.0, receiver_us_per_transfer=90.0,
      latency_us=np.full((2, 2), 40.0), busy_slowdown=busy_slowdown))
  fit = fitting.fit_transfers(
      graph, idle, costs, lambda placement: truth.simulate(placement).step_time_us, 8)
  assert len(fit.seen) == 10  # with each device alone
  rng, allowed = np.random.default_rng(5), allowed_devices(graph, idle)
  unseen = np.stack([fitting._random(graph, allowed, 9, rng) for _ in range(10)])
  expected = truth.simulate_many(unseen)[0]

  def error(simulator):
    return np.abs(simulator.simulate_many(unseen)[0] / expected - 1).mean()

  fitted = Simulator(graph, fitting._times(costs, fit.compute_scale), fit.cluster)
  assert error(fitted) < 0.3 * error(Simulator(graph, costs, idle))
