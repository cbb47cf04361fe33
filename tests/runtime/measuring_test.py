"""Placements timed on two real workers, and every way in which that can fail."""

import contextlib
import dataclasses
import os
import signal

import numpy as np
import pytest

from placeto_tf.errors import MeasurementError, PlacementError
from placeto_tf.placements import Placement
from placeto_tf.runtime.measuring import Measurer, MeasuringConfig, measure
from placeto_tf.runtime.workers import InProcess, LocalWorkers
from worker_cluster import WORKER_CLUSTER

MAPS = {each["name"]: f"/CPU:{i}" for i, each in enumerate(WORKER_CLUSTER["devices"])}
QUICK = MeasuringConfig(warmup_runs=2, min_runs=6, max_runs=8, max_seconds=5)


def test_a_placement_is_timed_on_two_workers(graph, cluster, halves, workers):
  measurer = Measurer(graph, cluster, workers, QUICK)
  for _ in range(2):
    step = measurer.measure(halves)
    assert 6 <= step.runs <= 8 and step.runs == len(step.times_us)
    assert 0 < step.low_us <= step.step_time_us <= step.high_us
    assert step.failure is None


def test_on_a_calibrated_cluster_times_are_at_the_speed_of_the_calibration(
    graph, cluster, halves, workers):
  found = []
  for probe_us in (1e3, 1e6):  # the second machine was a thousand times as slow
    calibrated = dataclasses.replace(cluster, core_probe_us=probe_us)
    found.append(Measurer(graph, calibrated, workers, QUICK).measure(halves).step_time_us)
  assert found[1] > 50 * found[0]


def test_times_are_those_of_the_clock_and_repeat_until_they_are_known(graph, cluster, single):
  def run(times, **changes):
    values = iter(times)
    config = dataclasses.replace(QUICK, max_runs=40, max_seconds=1e6, **changes)
    with InProcess(2) as runtime:
      return Measurer(graph, cluster, runtime, config, clock=lambda _: next(values),
                      device_map=MAPS).measure(single)

  steady = run([2e-3] * 40)
  assert (steady.step_time_us, steady.low_us, steady.high_us, steady.runs) == (2000, 2000, 2000, 6)
  unsteady = run([1e-3, 2e-3, 3e-3, 4e-3] * 10)
  assert unsteady.runs == 40 and unsteady.step_time_us == 2500


def test_an_op_that_ran_elsewhere_is_an_error_that_names_it(graph, cluster, halves, monkeypatch):
  from placeto_tf.runtime import session

  strayed = graph.op_names[graph.op_types.index("MatMul")]
  truth = session.executed_devices
  monkeypatch.setattr(
      session, "executed_devices", lambda metadata: {**truth(metadata), strayed: {"/device:CPU:7"}})
  with InProcess(2) as runtime, pytest.raises(
      PlacementError, match=f"op '{strayed}' ran on .*CPU:7"):
    measure(graph, halves, cluster, runtime=runtime, device_map=MAPS, warmup_runs=1)


def test_a_placement_that_tensorflow_would_change_is_an_error(graph, cluster, halves):
  devices = dict(halves)
  op = next(name for name, label, i in zip(graph.op_names, graph.colocation, range(graph.num_ops))
            if label != i)
  devices[op] = next(name for name in halves.devices if name != devices[op])
  with InProcess(2) as runtime, pytest.raises(PlacementError, match="must share a device"):
    measure(graph, Placement(devices, halves.devices), cluster, runtime=runtime, device_map=MAPS)


@pytest.fixture(name="workers", scope="module")
def workers_fixture(socket_filters):
  """Workers to break; `restart` mends them."""
  with LocalWorkers(2, startup_seconds=600) as workers:
    yield workers


class _At:
  """A clock that does something to a worker before step `when`."""

  def __init__(self, when, what):
    self.when, self.what, self.steps = when, what, 0

  def __call__(self, run):
    self.steps += 1
    if self.steps == self.when:
      self.what()
    return run.step()


@pytest.mark.parametrize("task, what, said", [
    (1, signal.SIGKILL, r"worker 1 has ended \(signal 9\)"),
    (1, signal.SIGSTOP, "a step did not end within its time-out")])
def test_a_lost_worker_marks_the_placement_failed_and_the_next_is_timed(
    graph, cluster, halves, workers, task, what, said):
  clock = _At(3, lambda: os.kill(workers.processes[task].pid, what))
  config = dataclasses.replace(QUICK, timeout_seconds=8.0)
  measurer = Measurer(graph, cluster, workers, config, clock=clock)
  before = [process.pid for process in workers.processes]
  with pytest.raises(MeasurementError, match=said):
    measurer.measure(halves)
  assert measurer.measure(halves).failure is None  # on new workers
  assert not set(before) & {process.pid for process in workers.processes}


def test_a_step_that_does_not_fit_or_fails_is_a_measurement_error(graph, cluster, single):
  def fail(run):
    import tensorflow as tf

    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

  with InProcess(2) as runtime:
    measurer = Measurer(graph, cluster, runtime, QUICK, clock=fail, device_map=MAPS)
    with pytest.raises(MeasurementError, match="ResourceExhaustedError: OOM"):
      measurer.measure(single)


@pytest.mark.parametrize("workers, warned", [
    ((), pytest.warns(UserWarning, match="share .*workers=..local:2..")),
    ("local:2", contextlib.nullcontext())], ids=["here", "workers"])
def test_files_and_texts_do_as_well_as_objects(graph, tmp_path, workers, warned, socket_filters):
  import graph_files
  import placeto_tf

  path = str(tmp_path / "one.json")
  everywhere = np.zeros(graph.num_ops, np.int32)
  Placement.from_indices(graph, placeto_tf.Cluster.parse("cpu:2"), everywhere).save(path)
  with warned:
    step = placeto_tf.measure(graph_files.meta_graph_def(), path, "cpu:2", workers=workers,
                              warmup_runs=1, min_runs=6, max_runs=6)
  assert isinstance(step, placeto_tf.MeasuredStep) and step.runs == 6
