"""Small graphs that measure the cost of a transfer, and where it arises, on the workers.

For a pair of devices, with P the time of packing (on the sender's compute), U of unpacking (on the
receiver's), and W the time in between that keeps neither busy, each for a given size:

  ping-pong    a chain that crosses after every op: its time gives P + W + U
  busy sender  the sender has work of its own while it sends many tensors that no op waits for:
               its extra time over the same work without them gives P
  busy receiver  the same for the receiver: gives U

Two sizes separate the cost per transfer from that per byte. The tensors are made in each step, each
by an op that also runs on the sender in the graph without transfers.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Callable, Iterator, List, Sequence, Tuple

import numpy as np

from placeto_tf.on_use import tf
from placeto_tf.runtime import session as session_lib
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.workers import Runtime

SMALL_BYTES, LARGE_BYTES = 64, 1 << 20
_HOPS = 40
_SENT = {SMALL_BYTES: 100, LARGE_BYTES: 20}
_WORK = 60  # matrix products that keep a device busy
_CHAIN = 2000  # ops, for the overhead of one


class Bench:
  """Runs small graphs on a runtime and gives the lower quartile of their step times.

  Disturbances by other processes only add time, and a small graph ends before they average out.
  """

  def __init__(self, runtime: Runtime, runs: int, timeout_seconds: float, speed: CoreSpeed):
    self._runtime, self._runs, self._speed = runtime, runs, speed
    self._timeout_seconds = timeout_seconds

  def times_us(self, builders: Sequence[Callable[[], tf.Operation]]) -> List[float]:
    """Measures one time for each of several graphs, whose steps take turns.

    Args:
      builders: each makes ops in the default graph and returns the op to run.

    Returns:
      The lower quartile of each graph's step times, in us.
    """
    with contextlib.ExitStack() as stack:
      sessions = [stack.enter_context(self._session(build)) for build in builders]

      def turn() -> List[float]:
        return [session.run(fetch) for session, fetch in sessions]

      # Warm-up: sessions and connections are set up.
      for _ in range(3):
        turn()
      turns = [self._speed.time(turn) for _ in range(self._runs)]
    # [turns, graphs] seconds, at full speed of the cores.
    times = np.array([np.array(turn) / factor for turn, factor in turns])
    return (np.percentile(times, 25, axis=0) * 1e6).tolist()

  def kernel_us(self, build: Callable[[], tf.Operation]) -> float:
    """Measures the median time of the graph's kernels, by a traced step."""
    with self._session(build) as (session, fetch):
      for _ in range(4):
        metadata = session.traced_run(fetch)
    # ns -> us; names with an underscore are the runtime's own nodes.
    spent = [(node.op_end_rel_nanos - node.op_start_rel_nanos) * 1e-3
             for stats in metadata.step_stats.dev_stats for node in stats.node_stats
             if not node.node_name.startswith("_")]
    return float(np.median(spent)) if spent else 0.0

  @contextlib.contextmanager
  def _session(
      self, build: Callable[[], tf.Operation]
  ) -> Iterator[Tuple[session_lib.BoundedSession, tf.Operation]]:
    """Gives a session on a small graph, and the op to run."""
    graph = tf.Graph()
    with graph.as_default():
      fetch = build()
    with contextlib.closing(session_lib.BoundedSession(
        self._runtime.target, graph, session_lib.session_config(num_cpus=self._runtime.num_cpus),
        self._timeout_seconds)) as session:
      yield session, fetch


def link_times(bench: Bench, source: str, target: str) -> np.ndarray:
  """Measures one link in one direction; the ping-pong gives the mean of both.

  Returns:
    [2, 3] us, for `SMALL_BYTES` and `LARGE_BYTES`: all of a hop, one after the other; packing on
    the sender's compute; unpacking on the receiver's.
  """
  rows: List[List[float]] = []
  for size in (SMALL_BYTES, LARGE_BYTES):
    # The difference of chains of equal ops, with and without crossings.
    crossing, staying = bench.times_us([
        functools.partial(_chain, source, target, size, _HOPS),
        functools.partial(_chain, source, source, size, _HOPS)])
    rows.append([max(0.0, crossing - staying) / _HOPS])
    for worker in (source, target):
      # The extra time of a busy worker that sends or receives as well.
      sending, quiet = bench.times_us([
          functools.partial(_stream, source, target, size, worker, True),
          functools.partial(_stream, source, target, size, worker, False)])
      rows[-1].append(max(0.0, sending - quiet) / _SENT[size])
  return np.array(rows)


def op_overhead_us(bench: Bench, device: str) -> float:
  """Measures the executor's time per op besides its kernel.

  Measured on a long chain of tiny ops, minus the times of their kernels in a trace.

  Args:
    bench: runs the small graphs.
    device: canonical name.
  """
  long, short = (functools.partial(_chain, device, device, 4, ops) for ops in (_CHAIN, 1))
  long_us, short_us = bench.times_us([long, short])
  found = (long_us - short_us) / (_CHAIN - 1) - bench.kernel_us(long)
  return max(0.0, found)  # a tenth of a microsecond or so, less than a busy machine shows


def _chain(here: str, there: str, size: int, length: int) -> tf.Operation:
  """Makes ops that take turns on two devices; each makes a new tensor, as a kernel does."""
  with tf.device(here):
    value = tf.fill([size // 4], 1.0)  # of 4 bytes each
  for hop in range(length):
    with tf.device(there if hop % 2 == 0 else here):
      value = tf.negative(value)
  return value.op


def _work(device: str) -> tf.Operation:
  """Makes a chain of ops that keeps a device busy for longer than the tensors take to be sent."""
  with tf.device(device):
    value = tf.fill([256, 256], 1 / 256)  # which its square is again
    for _ in range(_WORK):
      value = tf.matmul(value, value)
    return value.op


def _stream(source: str, target: str, size: int, worker: str, sending: bool) -> tf.Operation:
  """Makes work on one device, and tensors that the source makes and, if sent, the target uses.

  A sender works after it has made and sent them, so that the target has time to receive them.
  """
  with tf.device(source):
    made = [tf.fill([size // 4], float(k)) for k in range(_SENT[size])]
  # A busy receiver works from the start, while tensors arrive.
  with tf.control_dependencies([tensor.op for tensor in made] if worker == source else []):
    ends = {source: [tensor.op for tensor in made], target: []}
    ends[worker].append(_work(worker))
  if sending:
    with tf.device(target):
      ends[target] += [tf.identity(tensor).op for tensor in made]
  done = []
  for device in (source, target):
    with tf.device(device), tf.control_dependencies(ends[device]):
      done.append(tf.no_op())
  with tf.device(worker), tf.control_dependencies(done):
    return tf.no_op()
