"""Runtimes of sessions: worker processes on this machine, remote workers, or this process.

Each runtime has a `target` for sessions and `devices`, can name a `lost` worker, and can be
restarted and closed. Placement across workers uses TensorFlow's own distributed runtime.

Time-outs: a worker that this machine starts has `startup_seconds` to say that it serves, one
elsewhere as long to answer. A worker that has ended or hangs is noticed
after the time-out of a step at the latest.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from typing import BinaryIO, List, Optional, Sequence, Tuple, TypeVar, Union

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import local_name
from placeto_tf.errors import MeasurementError, option
from placeto_tf.on_use import tf
from placeto_tf.runtime import session as session_lib
from placeto_tf.runtime import worker as worker_lib

# glibc gives large tensors back to the system as soon as they are freed, so that each op pays for
# fresh pages. A product takes 1.5 or 4 ms, depending on whether its matrix lies in huge pages,
# which differs between sessions. With memory kept, in huge pages if possible, all runs are alike.
_MALLOC = ":".join((
    "glibc.malloc.hugetlb=1", "glibc.malloc.arena_max=1", "glibc.malloc.mmap_threshold=4294967296",
    "glibc.malloc.trim_threshold=8589934592"))
_MOST_WORKERS = 64  # on this machine
_ATTEMPTS = 2  # to start workers: a port that was free may be taken in between

_Self = TypeVar("_Self", bound="Runtime")


class Runtime:
  """Devices that sessions run on: local or remote worker processes, or this process.

  Attributes:
    num_cpus: CPU devices of one process.
    target: address that sessions connect to; "" for this process.
    devices: canonical names of the devices, once started.
    cores: the cores that each worker is bound to, where that is known.
    closed: whether the runtime has to be restarted before it serves.
    note: a clause on what its step times do not say, or "".
  """

  num_cpus = 1
  target = ""
  devices: Tuple[str, ...] = ()
  cores: Tuple[Tuple[int, ...], ...] = ()
  closed = False
  note = ""

  def __enter__(self: _Self) -> _Self:
    self.start()
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def start(self) -> None:
    """Makes the devices available.

    Raises:
      MeasurementError: they do not answer.
    """
    raise NotImplementedError

  def restart(self) -> None:
    """Makes the devices available again after a failure.

    Raises:
      MeasurementError: they do not answer.
    """
    self.close()
    self.start()

  def close(self) -> None:
    """Ends the devices that `start` made available."""

  def lost(self) -> Optional[str]:
    """Returns a sentence about a worker that is gone; None where only a session would show it."""
    return None

  def _list_devices(self, timeout_seconds: float, remedy: str) -> None:
    """Sets `devices` to the canonical names of a session's devices, without those of XLA."""
    config = session_lib.session_config(num_cpus=self.num_cpus)
    config.operation_timeout_in_ms = int(timeout_seconds * 1e3)
    try:
      with tf.Graph().as_default(), tf.compat.v1.Session(self.target, config=config) as session:
        found = [local_name(device.name) for device in session.list_devices()]
    except tf.errors.OpError as error:
      raise MeasurementError(self.lost() or (
          f"the devices of {self.target or 'this process'} could not be listed in "
          f"{timeout_seconds:g} s ({type(error).__name__}); {remedy}")) from error
    self.devices = tuple(name for name in found if name and "XLA" not in name)


class LocalWorkers(Runtime):
  """Workers that this process starts, one `tf.distribute.Server` per process, over gRPC on
  loopback.

  Each worker ends when this process ends for any reason, and accepts only local connections.

  Example:
    with LocalWorkers(2) as workers:
      tf.compat.v1.Session(workers.target, graph=graph)
  """

  def __init__(self, num_workers: int = 2, *, startup_seconds: float = 300.0):
    """Checks the number of workers; starts nothing yet.

    Raises:
      MeasurementError: too few or too many workers.
    """
    if not 0 < num_workers <= _MOST_WORKERS:
      raise MeasurementError(f"num_workers is {num_workers}; expected 1 to {_MOST_WORKERS}")
    self.num_workers, self.startup_seconds = num_workers, startup_seconds
    self.devices = tuple(f"/job:{worker_lib.JOB}/task:{i}/device:CPU:0" for i in range(num_workers))
    self.cores = tuple(_deal_cores(num_workers))
    self.ports: Tuple[int, ...] = ()
    self.processes: List[subprocess.Popen] = []
    self._logs: List[BinaryIO] = []

  @property
  def target(self) -> str:  # type: ignore[override]
    """Returns the address that sessions connect to: the first worker."""
    return f"grpc://127.0.0.1:{self.ports[0]}"

  @property
  def closed(self) -> bool:  # type: ignore[override]
    """Returns whether there are no workers, before the start or after the end."""
    return not self.processes

  def start(self) -> None:
    """Starts the workers and waits until they serve.

    Raises:
      MeasurementError: a worker ended, or did not come up in time.
    """
    for left in reversed(range(_ATTEMPTS)):
      atexit.register(self.close)
      self.ports = free_ports(self.num_workers)
      try:
        self._start_processes()
        self._wait_until_ready()
        return
      except BaseException as error:
        self.close()
        if not left or not isinstance(error, MeasurementError):
          raise

  def close(self) -> None:
    """Kills the workers and waits until they are gone."""
    self._kill()
    for process in self.processes:
      with process:  # closes its pipes and waits for its end
        pass
    for log in self._logs:
      log.close()
    self.processes, self._logs = [], []
    # A closed runtime is not kept alive by its exit handler.
    atexit.unregister(self.close)

  def lost(self) -> Optional[str]:
    """Returns a sentence about a worker whose process has ended, or None."""
    for i, process in enumerate(self.processes):
      if process.poll() is not None:
        return f"worker {i} has ended ({_ending(process.returncode)})"
    return None

  def _kill(self) -> None:
    for process in self.processes:
      process.kill()  # also ends one that is stopped

  def _start_processes(self) -> None:
    """Starts a process for each worker, with its port and its cores."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports)
    environment = {
        # The user's own GLIBC_TUNABLES win; GPUs are hidden from workers.
        "GLIBC_TUNABLES": _MALLOC, **os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    # The directory above placeto_tf, so that workers import this very package.
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package, os.environ.get("PYTHONPATH")]))
    for task in range(self.num_workers):
      log = tempfile.TemporaryFile()
      self._logs.append(log)
      # A session of its own, so that only the parent receives a terminal's Ctrl-C.
      self.processes.append(subprocess.Popen(
          [sys.executable, "-m", "placeto_tf.runtime.worker", f"--workers={addresses}",
           f"--task={task}", "--of_parent"],
          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
          env=environment, start_new_session=True))
      # Threads inherit the cores of the process's first thread, which has started no other yet.
      with contextlib.suppress(OSError):  # refused, or ended already
        if self.cores[task]:
          os.sched_setaffinity(self.processes[-1].pid, self.cores[task])

  def _wait_until_ready(self) -> None:
    """Waits for the line `ready` of each worker, or raises."""
    # All workers are killed when the time is over, which ends the reading here.
    timer = threading.Timer(self.startup_seconds, self._kill)
    timer.start()
    try:
      for i, process in enumerate(self.processes):
        assert process.stdout is not None  # it is a pipe
        if not process.stdout.readline().startswith(b"ready"):
          ending = _ending(process.wait())
          self._logs[i].seek(0)
          said = self._logs[i].read().decode("utf-8", "replace").strip().splitlines()
          raise MeasurementError(
              f"worker {i} did not come up in {self.startup_seconds:g} s ({ending}): "
              f"{said[-1] if said else 'give it more time, or look at the load of the machine'}")
    finally:
      timer.cancel()


class RemoteWorkers(Runtime):
  """Workers that already run elsewhere, by their addresses; they are never restarted."""

  def __init__(self, addresses: Sequence[str], *, startup_seconds: float = 30.0):
    """Checks the addresses; connects to none yet.

    Args:
      addresses: host:port of all workers in the order of their tasks.
      startup_seconds: until all answer.

    Raises:
      MeasurementError: an address that is no host:port, or none at all.
    """
    for address in addresses:
      host, _, port = address.rpartition(":")
      if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise MeasurementError(f"worker address {address!r} was not understood; expected host:port")
    if not addresses:
      raise MeasurementError("no worker addresses were given; expected host:port,...")
    self.addresses, self.startup_seconds = tuple(addresses), startup_seconds
    self.target = f"grpc://{self.addresses[0]}"

  def start(self) -> None:
    """Waits until all answer, and asks them for their devices."""
    self._list_devices(self.startup_seconds, self._remedy(range(len(self.addresses))))

  def lost(self) -> Optional[str]:
    """Returns a sentence about the workers whose addresses take no connection, or None."""
    dead = [task for task, each in enumerate(self.addresses) if not _listens(each)]
    named = " or ".join(self.addresses[task] for task in dead)
    return f"no worker listens at {named}; {self._remedy(dead)}" if dead else None

  def _remedy(self, tasks: Sequence[int]) -> str:
    return (f"start each with: python -m placeto_tf.runtime.worker --workers="
            f"{','.join(self.addresses)} --task={' or '.join(map(str, tasks))}")


class InProcess(Runtime):
  """Plain sessions of this process, with this machine's GPUs and as many CPU devices as wanted."""

  def __init__(self, num_cpus: int = 1):
    self.num_cpus = num_cpus
    if num_cpus > 1:
      self.note = (
          f"{num_cpus} CPU devices of one process share its threads and memory, so that their "
          f"steps say little about {num_cpus} machines or workers; "
          f"{option('workers', [f'local:{num_cpus}'])} gives each cores of its own")

  def start(self) -> None:
    """Asks TensorFlow for the devices."""
    self._list_devices(60.0, "see its messages above")


def make_runtime(cluster: Cluster, workers: Union[str, Sequence[str]] = ()) -> Runtime:
  """Makes the runtime for a cluster's placements, not yet started.

  Args:
    cluster: devices named /job:worker/task:N ask for workers; else this process is used.
    workers: host:port of each, for workers that already run, or "local:N" alone, for N to be
      started here.

  Raises:
    MeasurementError: `workers` is neither.
  """
  workers = (workers,) if isinstance(workers, str) else workers
  if len(workers) == 1 and workers[0].startswith("local:"):
    count = workers[0].partition(":")[2]
    if not re.fullmatch("[0-9]{1,9}", count) or not 1 <= int(count) <= _MOST_WORKERS:
      raise MeasurementError(f"workers {workers[0]!r} was not understood; expected local:N, N from "
                             f"1 to {_MOST_WORKERS}")
    num_workers = int(count)
  elif workers:
    return RemoteWorkers(workers)
  else:
    of_worker = re.compile(rf"/job:{worker_lib.JOB}/(?:replica:0/)?task:(\d+)/")
    numbers = [int(task[1]) for task in map(of_worker.match, cluster.device_names) if task]
    if len(numbers) < cluster.num_devices:  # some device is no worker's: all runs in this process
      return InProcess(sum(device.type == "CPU" for device in cluster.devices) or 1)
    num_workers = 1 + max(numbers)
  return LocalWorkers(num_workers)


def _listens(address: str) -> bool:
  """Returns whether something takes connections at host:port."""
  host, _, port = address.rpartition(":")
  with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), 2.0):
    return True
  return False


def free_ports(count: int) -> Tuple[int, ...]:
  """Returns ports that nobody listens on just now, all different."""
  with contextlib.ExitStack() as stack:
    probes = [stack.enter_context(socket.socket()) for _ in range(count)]
    for probe in probes:
      probe.bind(("127.0.0.1", 0))
    return tuple(probe.getsockname()[1] for probe in probes)


def _deal_cores(num_workers: int) -> List[Tuple[int, ...]]:
  """Returns this process's cores in equal shares; with fewer cores than workers, in turn."""
  if not hasattr(os, "sched_getaffinity"):
    return [()] * num_workers
  cores = sorted(os.sched_getaffinity(0))
  share, turns = max(1, len(cores) // num_workers), cores * num_workers
  return [tuple(turns[i * share:(i + 1) * share]) for i in range(num_workers)]


def _ending(code: Optional[int]) -> str:
  return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
