"""Workers come up, end with their parent whatever it dies of, and leave nothing behind."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from placeto_tf.errors import MeasurementError
from placeto_tf.runtime import loopback
from placeto_tf.runtime import workers as workers_lib
from placeto_tf.runtime.workers import LocalWorkers, RemoteWorkers

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
HANG = "import time\ntime.sleep(600)\n"  # of a sitecustomize.py: a worker that does not come up
LONG_S = 300.0  # for what takes no time on a machine that does nothing else

# A parent that starts a worker, says who it is, and waits.
PARENT = """
import sys, time
from placeto_tf.runtime.workers import LocalWorkers
with LocalWorkers(1) as workers:
  print(workers.processes[0].pid, workers.ports[0], flush=True)
  time.sleep(600)
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


def _wait_until(condition, seconds=LONG_S):
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


@pytest.fixture(name="customize")
def customize_fixture(tmp_path, monkeypatch):
  """Has the Python of workers run some code before anything else."""
  def customize(code, patched=monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(code)
    patched.setenv("PYTHONPATH", os.pathsep.join(
        filter(None, [str(tmp_path), ROOT, os.environ.get("PYTHONPATH")])))

  return customize


@pytest.mark.usefixtures("socket_filters")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_and_no_port_outlive_the_parent(how):
  parent, pid, port = _start_parent()
  with parent:
    assert _alive(pid) and _listens(port)
    parent.send_signal(how)
    parent.wait(LONG_S)
    assert _wait_until(lambda: not _alive(pid) and not _listens(port))


def test_a_worker_that_does_not_come_up_in_time_is_an_error_and_is_gone(customize):
  customize(HANG)
  workers = LocalWorkers(1, startup_seconds=0.05)
  started = []
  original = workers._start_processes
  workers._start_processes = lambda: (original(), started.extend(workers.processes))
  with pytest.raises(MeasurementError, match="worker 0 did not come up in 0.05 s"):
    workers.start()
  assert len(started) == 2 and all(process.poll() is not None for process in started)
  assert workers.processes == []


@pytest.mark.usefixtures("socket_filters")
def test_a_chosen_port_that_is_taken_in_between_is_replaced(monkeypatch):
  free = workers_lib.free_ports
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    chosen = [(taken.getsockname()[1],)]

    def choose(count):
      chosen.append(free(count))
      return chosen[-2]

    monkeypatch.setattr(workers_lib, "free_ports", choose)
    with LocalWorkers(1) as workers:
      assert workers.ports != chosen[0] and workers.ports in chosen and workers.lost() is None
      pid, port = workers.processes[0].pid, workers.ports[0]
      # Others join it as they would one on another machine.
      with RemoteWorkers([f"127.0.0.1:{port}"]) as joined:
        assert joined.devices == workers.devices == ("/job:worker/task:0/device:CPU:0",)
      assert _alive(pid)
      os.kill(pid, signal.SIGKILL)
      assert _wait_until(lambda: workers.lost() is not None)
      assert workers.lost() == "worker 0 has ended (signal 9)"
    assert not _listens(port)


@pytest.mark.usefixtures("socket_filters")
def test_workers_elsewhere_that_do_not_answer_are_an_error_that_says_how_to_start_them():
  # Both have their ports, so that nobody else gets them; the second does not listen.
  with socket.socket() as listener, socket.socket() as silent:
    for each in (listener, silent):
      each.bind(("127.0.0.1", 0))
    listener.listen()  # accepts, and says nothing
    first, second = (f"127.0.0.1:{each.getsockname()[1]}" for each in (listener, silent))
    with pytest.raises(MeasurementError, match=(
        f"^no worker listens at {second}; .*--workers={first},{second} --task=1$")):
      RemoteWorkers([first, second], startup_seconds=0.1).start()
    with pytest.raises(MeasurementError, match="could not be listed.* --task=0$"):
      RemoteWorkers([first], startup_seconds=2).start()


@pytest.fixture(name="address")
def address_fixture(socket_filters):
  """An address of this machine that is not loopback."""
  address = "127.0.0.1"
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
    probe.connect(("192.0.2.1", 9))  # sends nothing
    address = probe.getsockname()[0]
  if address.startswith("127."):
    pytest.skip("this machine has no address but loopback")
  return address


def _listening_ports(pid):
  """Ports on which a process listens, by /proc."""
  inodes = set()
  for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
    with contextlib.suppress(OSError):  # closed in between
      link = os.readlink(path)
      if link.startswith("socket:["):
        inodes.add(link[8:-1])
  rows = [line.split() for name in ("tcp", "tcp6") if os.path.exists(f"/proc/{pid}/net/{name}")
          for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
  found = {int(row[1].rpartition(":")[2], 16)
           for row in rows if row[3] == "0A" and row[9] in inodes}
  assert found
  return found


def test_local_workers_are_reached_over_loopback_alone(address):
  with LocalWorkers(2) as workers:
    for pid, port in zip((process.pid for process in workers.processes), workers.ports):
      assert _listens(port)
      for listening in _listening_ports(pid):  # whatever else TensorFlow may open
        with socket.socket() as probe:
          probe.settimeout(1.0)
          assert probe.connect_ex((address, listening)) != 0


def test_a_server_that_is_not_restricted_is_reached_from_elsewhere(address):
  # Else the test above would show nothing.
  with socket.socket() as server:
    server.bind(("0.0.0.0", 0))
    server.listen()
    port = server.getsockname()[1]
    with socket.create_connection((address, port), timeout=LONG_S):
      pass
    assert loopback.restrict(port) == 1
    with socket.socket() as probe:
      probe.settimeout(0.5)
      assert probe.connect_ex((address, port)) != 0
    with socket.create_connection(("127.0.0.1", port), timeout=LONG_S) as sender:
      server.settimeout(LONG_S)
      server.accept()[0].close()  # the one from before
      connection, _ = server.accept()
      with connection:
        sender.sendall(b"all" * 100_000)
        assert connection.recv(3) == b"all"


def test_a_worker_that_cannot_be_kept_to_loopback_does_not_start(customize):
  customize("from placeto_tf.runtime import loopback\n"
            "def attach(server):\n  raise OSError(92, 'Protocol not available')\n"
            "loopback.attach = attach\n")
  workers = LocalWorkers(1)
  with pytest.raises(MeasurementError, match="reached by other machines.*--workers"):
    workers.start()
  assert workers.closed


@pytest.mark.usefixtures("socket_filters")
def test_a_worker_killed_as_it_starts_gets_another_try(customize, monkeypatch):
  workers = LocalWorkers(2)
  original, hurt = workers._start_processes, [signal.SIGKILL]

  def start_processes():
    with monkeypatch.context() as patched:
      if hurt:  # none may serve before it is hurt
        customize(HANG, patched)
      original()
    for process in workers.processes[::-1] if hurt else ():
      process.send_signal(hurt[0])
    hurt.clear()

  with workers:
    first = list(workers.processes)
    workers._start_processes = start_processes
    hurt[:] = [signal.SIGKILL]
    workers.restart()
    assert not hurt and workers.lost() is None
    assert all(process.poll() is not None for process in first)


@pytest.mark.parametrize("text", ["local:0", "local:65", "local:1000000", "local:x", "local:²",
                                  "local:" + "9" * 5000])
def test_a_number_of_workers_beyond_reason_is_refused(text, cluster):
  with pytest.raises(MeasurementError, match="expected local:N, N from 1 to 64"):
    workers_lib.make_runtime(cluster, [text])


@pytest.mark.parametrize("address", [
    "nowhere", "host:", ":80", "host:port", "host:0", "host:65536", "host:²"])
def test_addresses_are_checked(address):
  with pytest.raises(MeasurementError, match="expected host:port"):
    RemoteWorkers([address])
