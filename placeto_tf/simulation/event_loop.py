"""The reference simulator as a compiled event loop; docs/simulator.md numbers its rules.

Four things make it fast without changing a result:

- The head of a FIFO never changes. So when a device's op ends and the queue is not empty, the next
  op's start (the end plus the overhead) and end are known at once; if the queue is empty, they are
  known when the first op arrives. So a device has only one event per op, the op's end; likewise a
  bus. The next instant is a minimum over 2 D numbers, without a heap.
  One case needs an event at the start: an op or transfer that starts later than now and takes no
  time must end in the second round of that instant, so its slot first wakes up at the start.
- Dependencies that wait for a latency are sorted by the time at which they are lost. They are few,
  and most new ones belong at the end.
- Memory is tracked by reference counts [O, D]: an entry counts the users of output o on device d
  (consumers on the device, and the transfer if it is the producer's device). All entries are 0
  again after a step, so nothing has to be cleared between placements.
- Usage is compared with the peak only when it changes at a later instant than at its last change,
  so that usage within one instant, between frees and allocations, does not count.

Dimensions: N ops, S segments (an output port, or the control port, of an op with at least one
consumer), E edges, O outputs, D devices, K device kinds, B placements. Segments are in the order
of (producer, port), the edges of a segment in the order of their consumers.

Slots 0..D-1 of `due` are devices, D..2D-1 are buses.

The parts of the loop are functions that the compiler inlines. Reference counting is off (`_nrt`):
the caller holds all arrays, and counting each access to a field made the loop 45 times slower.
Nothing in this module may therefore allocate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto_tf.simulation.compiling import compiled, inlined

END = np.uint32(2**32 - 1)  # marks the end of a queue, and the missing output of a control segment

# Rows of the arrays of a `Workspace`. A slot's work ends at DUE, inf while the slot is idle. PAUSE
# is the pause after the end of the CURRENT op or segment, FREE the time from which an idle slot can
# start again. HEAD and TAIL are those of the slot's queue, or END. A slot is WAKING if DUE is the
# start of an op or transfer that takes no time.
DUE, FREE, PAUSE = 0, 1, 2
CURRENT, HEAD, TAIL = 0, 1, 2
IDLE, WAKING = 0, 1
# The last change of a device's usage; the time at which its current op allocates its bytes, inf
# once done; and the time at which its process has finished its launches.
TOUCHED, HOLD, LAUNCHED = 0, 1, 2


class Workspace(NamedTuple):
  """The arrays of one thread, reused from one placement to the next.

  Few arrays with rows, because each array of an argument takes time to compile.
  """

  missing: np.ndarray  # [N] int32, dependencies of each op that are not lost yet
  ready: np.ndarray  # [N+1] uint32, ops that got ready in this round
  next_op: np.ndarray  # [N] uint32, links of the devices' queues
  next_segment: np.ndarray  # [S] uint32, links of the buses' queues
  references: np.ndarray  # [O, D] int32, all 0 before and after
  segment_us: np.ndarray  # [S] float64, duration of each transfer that took place
  segment_start_us: np.ndarray  # [S] float64
  flight_us: np.ndarray  # [E] ascending times when dependencies that wait for a latency are lost
  flight_edges: np.ndarray  # [E] uint32, edges of these dependencies, ascending at equal times
  slot_us: np.ndarray  # [3, 2D] float64: DUE, FREE, PAUSE
  slot_items: np.ndarray  # [3, 2D] uint32: CURRENT, HEAD, TAIL
  slot_flags: np.ndarray  # [2, 2D] bool: IDLE, WAKING
  ended: np.ndarray  # [4D] uint32, slots whose work ends in this round
  ended_keys: np.ndarray  # [4D] uint32, the order in which their dependencies are lost
  startable: np.ndarray  # [4D] uint32, slots that may start something in this round
  usage: np.ndarray  # [D] float64 bytes
  device_us: np.ndarray  # [3, D] float64: TOUCHED, HOLD, LAUNCHED

  @classmethod
  def make(cls, n: int, s: int, e: int, o: int, d: int) -> Workspace:
    """Allocates for graphs of n ops on d devices.

    Args:
      n, s, e, o, d: numbers of ops, segments, edges, outputs and devices.

    Returns:
      A workspace; references are 0, most other arrays are not initialized.
    """
    return cls(
        np.empty(n, np.int32), np.empty(n + 1, np.uint32), np.empty(n, np.uint32),
        np.empty(s, np.uint32), np.zeros((o, d), np.int32), np.zeros(s), np.zeros(s), np.empty(e),
        np.empty(e, np.uint32), np.empty((3, 2 * d)), np.zeros((3, 2 * d), np.uint32),
        np.empty((2, 2 * d), np.bool_), np.zeros(4 * d, np.uint32), np.zeros(4 * d, np.uint32),
        np.zeros(4 * d, np.uint32), np.empty(d), np.empty((3, d)))


@inlined
def _reset(peak, tables, w):
  """Sets the state to the beginning of a step; returns how many ops are ready."""
  for i in range(tables.in_degrees.shape[0]):
    w.missing[i] = tables.in_degrees[i]
  # Loops instead of assignments of arrays, which take longer to compile.
  for x in range(w.slot_us.shape[1]):
    w.slot_us[DUE, x], w.slot_us[FREE, x], w.slot_items[HEAD, x] = np.inf, 0.0, END
    w.slot_flags[IDLE, x], w.slot_flags[WAKING, x] = True, False
  for d in range(w.usage.shape[0]):
    w.usage[d], peak[d] = 0.0, 0.0
    w.device_us[TOUCHED, d], w.device_us[HOLD, d], w.device_us[LAUNCHED, d] = 0.0, np.inf, 0.0
  ready_count = np.uint64(0)
  for k in range(tables.roots.shape[0]):
    w.ready[ready_count] = tables.roots[k]
    ready_count += np.uint64(1)
  return ready_count


@inlined
def _settle_memory(d, now, peak, tables, w):
  """Updates the peak of device d with the bytes held until now, before its usage changes."""
  # The op that started since the last change allocated its bytes at its start, before now.
  if w.device_us[HOLD, d] < now:
    w.usage[d] += tables.hold_bytes[w.slot_items[CURRENT, d]]
    w.device_us[HOLD, d] = np.inf
  # Only bytes held over an interval count for the peak, not usage within one instant.
  if w.device_us[TOUCHED, d] < now:
    peak[d] = max(peak[d], w.usage[d])
    w.device_us[TOUCHED, d] = now


@inlined
def _begin(x, start, d_count, starts, w):
  """Begins the op or transfer that slot x runs."""
  w.slot_flags[WAKING, x] = False
  if x < d_count:
    starts[w.slot_items[CURRENT, x]] = start
    w.device_us[HOLD, x] = start
  else:
    w.segment_start_us[w.slot_items[CURRENT, x]] = start


@inlined
def _release_memory(i, x, now, peak, tables, w):
  """Frees the bytes of op i on device x, and the inputs of which it was the last reader there."""
  _settle_memory(x, now, peak, tables, w)
  held = tables.hold_bytes[i] if w.device_us[HOLD, x] == now else 0.0  # it took no time
  w.device_us[HOLD, x] = np.inf
  # The op gives up one reference to each input; the last reference frees the copy.
  freed = tables.release_bytes[i]
  for k in range(tables.input_offsets[i], tables.input_offsets[i + 1]):
    output = tables.input_outputs[k]
    count_here = w.references[output, x] - 1
    w.references[output, x] = count_here
    if count_here == 0:
      freed += tables.output_bytes[output]
  w.usage[x] += held - freed


@inlined
def _append(x, item, following, w, startable_count):
  """Adds an item to slot x's queue, a linked list whose links are in `following`."""
  following[item] = END
  if w.slot_items[HEAD, x] == END:
    w.slot_items[HEAD, x] = item
    w.startable[startable_count] = x
    startable_count += np.uint64(1)
  else:
    following[w.slot_items[TAIL, x]] = item
  w.slot_items[TAIL, x] = item
  return startable_count


@inlined
def _deliver_locally(x, s, d_count, place, tables, w, ready_count, startable_count):
  """Delivers segment s to its consumers on device x, and queues it on the bus for other devices."""
  # `here` counts the output's users on its device: consumers, the fetch, the transfer.
  here = tables.segment_fetched[s]
  slowest = np.inf
  for e in range(tables.segment_edges[s], tables.segment_edges[s + 1]):
    j = tables.edge_consumers[e]
    d = np.uint32(place[j])
    # Without branches, which would be mispredicted half of the time; the diagonal of bandwidth is
    # infinite.
    local = np.int32(d == x)
    here += local
    remaining = w.missing[j] - local
    w.missing[j] = remaining
    # Always written, but counted only if the op is ready; else the next write overwrites it.
    w.ready[ready_count] = j
    ready_count += np.uint64((remaining == 0) & (d == x))
    slowest = min(slowest, tables.bandwidth[x, d])
  # A finite bandwidth means that at least one consumer is on another device.
  if slowest < np.inf:
    here += 1
    # One transfer serves all receivers, and takes as long as its slowest link.
    w.segment_us[s] = tables.segment_bytes[s] / slowest
    startable_count = _append(x + d_count, s, w.next_segment, w, startable_count)
  output = tables.segment_outputs[s]
  if output != END:
    w.references[output, x] = here
  return ready_count, startable_count


@inlined
def _launch(count, now, d_count, tables, w):
  """Delays devices whose ops ended in this round until their process has launched to all."""
  for pass_number in range(2):
    for x in range(d_count):  # the order of devices
      ended = False
      for k in range(count):
        ended = ended or w.ended[k] == x
      # A device that only woke up is not idle.
      if not ended or not w.slot_flags[IDLE, x]:
        continue
      cost = tables.compute_us[w.slot_items[CURRENT, x], tables.kinds[x]]
      launcher = tables.launchers[x]
      if cost <= 0.0:  # without a kernel there is no launch
        continue
      if pass_number == 0:  # launches begin now, or beside the kernels
        w.device_us[LAUNCHED, launcher] = tables.launch_us + max(
            now - tables.overlap[x] * cost, w.device_us[LAUNCHED, launcher])
      else:
        w.slot_us[FREE, x] = max(w.slot_us[FREE, x], w.device_us[LAUNCHED, launcher])


@inlined
def _put_in_flight(at_us, e, first, last, w):
  """Adds the dependency of edge e, which is lost at `at_us`, to flight[first:last]."""
  # Insertion sort by (instant, edge); the new one is nearly always the latest.
  k = last
  while k > first and (w.flight_us[k - 1] > at_us or (
      w.flight_us[k - 1] == at_us and w.flight_edges[k - 1] > e)):
    w.flight_us[k] = w.flight_us[k - 1]
    w.flight_edges[k] = w.flight_edges[k - 1]
    k -= np.uint64(1)
  w.flight_us[k] = at_us
  w.flight_edges[k] = e


@inlined
def _land(until, now, first, last, tables, w, ready_count):
  """Removes the dependencies in flight that are due now, of edges before `until`."""
  while first < last and w.flight_us[first] == now and w.flight_edges[first] < until:
    j = tables.edge_consumers[w.flight_edges[first]]
    remaining = w.missing[j] - 1
    w.missing[j] = remaining
    w.ready[ready_count] = j
    ready_count += np.uint64(remaining == 0)
    first += np.uint64(1)
  return first, ready_count


@inlined
def _end_transfer(bus, now, d_count, place, peak, tables, w, ready_count, first, last):
  """Delivers a sent tensor to consumers on other devices; allocates one copy on each device."""
  source = bus - d_count
  s = w.slot_items[CURRENT, bus]
  output = tables.segment_outputs[s]
  for e in range(tables.segment_edges[s], tables.segment_edges[s + 1]):
    j = tables.edge_consumers[e]
    d = np.uint32(place[j])
    remote = d != source
    at_us = now + tables.latency[source, d]
    # With a latency the dependency is lost later, else in this round.
    if remote & (at_us > now):
      _put_in_flight(at_us, np.uint32(e), first, last, w)
      last += np.uint64(1)
    else:
      remaining = w.missing[j] - np.int32(remote)
      w.missing[j] = remaining
      w.ready[ready_count] = j
      ready_count += np.uint64((remaining == 0) & remote)
    # The first consumer on a device allocates the copy there; others only add references.
    if output != END and remote:
      count_here = w.references[output, d] + 1
      w.references[output, d] = count_here
      if count_here == 1:
        _settle_memory(d, now, peak, tables, w)
        w.usage[d] += tables.output_bytes[output]
  # The transfer itself had a reference on the producer's device.
  if output != END:
    count_here = w.references[output, source] - 1
    w.references[output, source] = count_here
    if count_here == 0:
      _settle_memory(source, now, peak, tables, w)
      w.usage[source] -= tables.output_bytes[output]
  return ready_count, last


@inlined
def _queue_ready(ready_count, place, w, startable_count):
  """Queues on their devices the ops that became ready in this round."""
  for k in range(ready_count):
    i = w.ready[k]
    d = np.uint32(place[i])
    startable_count = _append(d, i, w.next_op, w, startable_count)
  return startable_count


@inlined
def _start_next(x, now, d_count, starts, tables, w):
  """Starts the head of slot x's queue, now or once the slot is free."""
  i = w.slot_items[HEAD, x]
  start = max(now, w.slot_us[FREE, x])
  w.slot_items[CURRENT, x] = i
  w.slot_flags[IDLE, x] = False
  if x < d_count:
    w.slot_items[HEAD, x] = w.next_op[i]
    cost = tables.compute_us[i, tables.kinds[x]]
    end = start + cost
    # Ops that launch no kernel pay no overhead, and a launch beside the kernel only what is left.
    w.slot_us[PAUSE, x] = max(
        tables.overhead_us - tables.overlap[x] * cost, 0.0) if cost > 0.0 else 0.0
  else:
    w.slot_items[HEAD, x] = w.next_segment[i]
    end = start + w.segment_us[i]
    w.slot_us[PAUSE, x] = tables.bus_gap_us
  # If it starts later than now and takes no time, the slot wakes up at the start; see the module.
  if end > start or start == now:
    w.slot_us[DUE, x] = end
    _begin(x, start, d_count, starts, w)
  else:
    w.slot_us[DUE, x] = start
    w.slot_flags[WAKING, x] = True


@inlined
def insert(first, last, item, key, items, keys):
  """Inserts an item into items[first:last], which are sorted by keys, after items of equal keys.

  Args:
    first, last: the sorted range; it grows by one, so items[last] must exist.
    item, key: the new item and its key.
    items, keys: [at least last + 1], changed in place.
  """
  at = last
  while at > first and keys[at - 1] > key:
    keys[at] = keys[at - 1]
    items[at] = items[at - 1]
    at -= 1
  keys[at] = key
  items[at] = item


@inlined
def _next_round(d_count, tables, w, first, last):
  """Finds the instant of the next round, and the slots that end then, in `w.ended`."""
  slots = np.uint64(2) * d_count
  due, ended, ended_keys = w.slot_us[DUE], w.ended, w.ended_keys
  now = np.inf
  bus_due = np.inf
  device = np.uint32(0)
  bus = np.uint32(0)
  # The earliest device and the earliest bus, each in one pass; ties go to the lowest index.
  for d in range(d_count):
    device = np.uint32(d) if due[d] < now else device
    now = due[d] if due[d] < now else now
    bus = np.uint32(d) if due[d + d_count] < bus_due else bus
    bus_due = due[d + d_count] if due[d + d_count] < bus_due else bus_due
  ended[0] = device if now < bus_due else np.uint32(bus + d_count)
  now = now if now < bus_due else bus_due
  if first < last and w.flight_us[first] < now:
    now = w.flight_us[first]
  count = np.uint64(0)
  for x in range(slots):
    count += np.uint64(due[x] == now)
  if count > 1:  # dependencies are lost in the order of (producer, port)
    count = np.uint64(0)
    for x in range(slots):
      ended[count] = x
      if due[x] == now:
        count += np.uint64(1)
    # Sort the slots of this instant by the (first) segment that they run.
    for k in range(np.int64(count)):
      x = ended[k]
      key = w.slot_items[CURRENT, x]
      if x < d_count:
        key = tables.op_segments[key]
      insert(0, np.int64(k), x, key, ended, ended_keys)
  return now, count


@inlined
def finish(place, tables, references, usage, peak_bytes):
  """Adds persistent bytes to the peaks, and brings all references back to 0.

  Args:
    place: [N] int32, the device of each op.
    tables: `SimulationTables`.
    references: [O, D] int32; only references of fetches are left, and are set to 0 here.
    usage: [D] float64, overwritten.
    peak_bytes: [D] float64, added to.
  """
  for d in range(usage.shape[0]):
    usage[d] = 0.0
  for k in range(tables.persistent_ops.shape[0]):
    i = tables.persistent_ops[k]
    usage[np.uint32(place[i])] += tables.persistent_bytes[i]
  for d in range(tables.kinds.shape[0]):
    peak_bytes[d] += usage[d]
  # Outputs that are fetched and consumed still hold one reference, for the fetch.
  for k in range(tables.fetched.shape[0]):
    references[tables.fetched[k], np.uint32(place[tables.fetched_ops[k]])] = 0


@inlined
def _settle_peaks(now, d_count, place, peak, tables, w):
  """Fills the peaks [D] when the last op has ended."""
  for d in range(d_count):
    if w.device_us[TOUCHED, d] < now:
      peak[d] = max(peak[d], w.usage[d])
  finish(place, tables, w.references, w.usage, peak)


# The loop is not an inlined function: for each block of an inlined function numba copies all of its
# variables, so that inlining one of this size takes as long as compiling the rest.
@compiled(nogil=True, _nrt=False)
def simulate_range(placements, first, last, tables, workspace, start_us, step_time_us, peak_bytes):
  """Simulates placements[first:last] one after the other; allocates nothing.

  Args:
    placements: [B, N] int32.
    first, last: the range of placements to simulate.
    tables: `SimulationTables`.
    workspace: `Workspace`.
    start_us: [B, N] float64, filled; or [1, N] where start times are not wanted.
    step_time_us: [B] float64, filled.
    peak_bytes: [B, D] float64, filled.
  """
  w = workspace
  keep_starts = start_us.shape[0] == placements.shape[0]
  d_count = np.uint64(tables.kinds.shape[0])
  for b in range(first, last):
    place, peak, starts = placements[b], peak_bytes[b], start_us[b if keep_starts else 0]
    # `left` counts the ops that have not ended; the step ends with the last of them.
    left = tables.in_degrees.shape[0]
    ready_count = _reset(peak, tables, w)
    count = np.uint64(0)
    begin = np.uint64(0)  # dependencies in flight are begin:end
    end = np.uint64(0)
    now = 0.0
    while True:
      # One round: first, ended ops and transfers, and arrivals, remove dependencies ...
      startable_count = np.uint64(0)
      for k in range(count):
        x = w.ended[k]
        # Dependencies in flight of earlier segments are removed before those of this segment.
        if begin < end:
          s = w.slot_items[CURRENT, x]
          s = s if x >= d_count else tables.op_segments[s]
          begin, ready_count = _land(
              tables.segment_edges[s], now, begin, end, tables, w, ready_count)
        if w.slot_flags[WAKING, x]:
          _begin(x, now, d_count, starts, w)  # it takes no time, and ends in the next round
          continue
        w.slot_flags[IDLE, x] = True
        w.slot_us[DUE, x] = np.inf
        w.slot_us[FREE, x] = now + w.slot_us[PAUSE, x]
        w.startable[startable_count] = x
        startable_count += np.uint64(1)
        if x < d_count:
          left -= 1
          i = w.slot_items[CURRENT, x]
          _release_memory(i, x, now, peak, tables, w)
          for s in range(tables.op_segments[i], tables.op_segments[i + 1]):
            ready_count, startable_count = _deliver_locally(
                x, s, d_count, place, tables, w, ready_count, startable_count)
        else:
          ready_count, end = _end_transfer(
              x, now, d_count, place, peak, tables, w, ready_count, begin, end)
      begin, ready_count = _land(END, now, begin, end, tables, w, ready_count)
      if left == 0:
        break
      if tables.launch_us > 0.0 and tables.overhead_us > 0.0:
        _launch(count, now, d_count, tables, w)
      # ... then ops that became ready are queued ...
      startable_count = _queue_ready(ready_count, place, w, startable_count)
      ready_count = np.uint64(0)
      # ... and buses and devices start the next items, now or once they are free.
      for k in range(startable_count):
        x = w.startable[k]
        if w.slot_flags[IDLE, x] and w.slot_items[HEAD, x] != END:
          _start_next(x, now, d_count, starts, tables, w)
      now, count = _next_round(d_count, tables, w, begin, end)
    _settle_peaks(now, d_count, place, peak, tables, w)
    step_time_us[b] = now
