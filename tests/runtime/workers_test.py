"""Workers come up, end with their parent whatever it dies of, and leave nothing behind."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from placeto_tf.errors import MeasurementError
from placeto_tf.runtime import workers as workers_lib
from placeto_tf.runtime.workers import InProcess, LocalWorkers, RemoteWorkers, WorkerConfig

ROOT = str(pathlib.Path(__file__).resolve().parents[2])

# A parent that starts a worker, says who it is, and waits.
PARENT = """
import sys, time
from placeto_tf.runtime.workers import LocalWorkers, WorkerConfig
with LocalWorkers(WorkerConfig(num_workers=1)) as workers:
  print(workers.processes[0].pid, workers.ports[0], flush=True)
  time.sleep(60)
"""


def _listens(port):
  with socket.socket() as probe:
    return probe.connect_ex(("127.0.0.1", port)) == 0


def _alive(pid):
  """Whether the process runs; one that ended and waits for its parent does not."""
  try:
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
  except FileNotFoundError:
    return False
  return state != "Z"


def _wait_until(condition, seconds=5.0):
  deadline = time.monotonic() + seconds
  while not condition() and time.monotonic() < deadline:
    time.sleep(0.02)
  return condition()


def _start_parent():
  parent = subprocess.Popen(
      [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
      env={**os.environ, "PYTHONPATH": ROOT})
  pid, port = map(int, parent.stdout.readline().split())
  return parent, pid, port


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_and_no_port_outlive_the_parent(how):
  parent, pid, port = _start_parent()
  with parent:
    assert _alive(pid) and _listens(port)
    parent.send_signal(how)
    parent.wait(10)
    assert _wait_until(lambda: not _alive(pid) and not _listens(port))


def test_a_worker_that_does_not_come_up_in_time_is_an_error_and_is_gone():
  workers = LocalWorkers(WorkerConfig(num_workers=1, startup_seconds=0.05))
  started = []
  original = workers._start_processes
  workers._start_processes = lambda: (original(), started.extend(workers.processes))
  with pytest.raises(MeasurementError, match="worker 0 did not come up in 0.05 s"):
    workers.start()
  assert len(started) == 1 and started[0].poll() is not None
  assert workers.processes == []


def test_a_given_port_that_is_in_use_is_an_error():
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(MeasurementError, match=f"port {port} of worker 0 is in use"):
      LocalWorkers(WorkerConfig(num_workers=1), ports=[port]).start()


def test_a_chosen_port_that_is_taken_in_between_is_replaced(monkeypatch):
  free = workers_lib._free_ports
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    choices = [(taken.getsockname()[1],), free(1)]
    offered = list(choices)
    monkeypatch.setattr(workers_lib, "_free_ports", lambda count: offered.pop(0))
    with LocalWorkers(WorkerConfig(num_workers=1)) as workers:
      assert workers.ports == choices[1] and workers.lost() is None
      pid, port = workers.processes[0].pid, workers.ports[0]
      # Others join it as they would one on another machine.
      with RemoteWorkers([f"127.0.0.1:{port}"]) as joined:
        assert joined.devices == workers.devices == ("/job:worker/task:0/device:CPU:0",)
      assert _alive(pid)
      os.kill(pid, signal.SIGKILL)
      assert _wait_until(lambda: workers.lost() is not None)
      assert workers.lost() == "worker 0 has ended (signal 9)"
    assert not _listens(port)


def test_workers_elsewhere_that_do_not_answer_are_an_error_that_says_how_to_start_them():
  port = workers_lib._free_ports(1)[0]
  with pytest.raises(MeasurementError, match=f"--workers=127.0.0.1:{port} --task=0"):
    RemoteWorkers([f"127.0.0.1:{port}"], startup_seconds=0.1).start()


@pytest.mark.parametrize("address", ["nowhere", "host:", ":80", "host:port"])
def test_addresses_are_checked(address):
  with pytest.raises(MeasurementError, match="expected host:port"):
    RemoteWorkers([address])


def test_cores_are_dealt_out_in_equal_shares(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 5, 7})
  assert workers_lib._deal_cores(2) == [(1, 2), (5, 7)]
  assert workers_lib._deal_cores(3) == [(1,), (2,), (5,)]
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
  assert workers_lib._deal_cores(2) == [(3,), (3,)]


def test_a_session_of_this_process_has_the_devices_asked_for():
  with InProcess(3) as runtime:
    assert runtime.devices == tuple(f"/device:CPU:{i}" for i in range(3))
    assert runtime.target == ""


def test_messages_go_ahead_of_ops_where_that_is_permitted():
  try:
    policy = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    os.sched_setscheduler(0, policy, os.sched_param(0))
  except (AttributeError, OSError):
    pytest.skip("real-time scheduling is not permitted here")
  with LocalWorkers(WorkerConfig(num_workers=1)) as workers:
    threads = os.listdir(f"/proc/{workers.processes[0].pid}/task")
    policies = [os.sched_getscheduler(int(thread)) for thread in threads]
  # The thread that runs ops, and those that were there before TensorFlow came up.
  assert 1 <= policies.count(os.SCHED_OTHER) < policies.count(os.SCHED_RR)
