"""The reference simulator as a compiled event loop.

Three things make it fast without changing a result:

- A FIFO's head does not change once it is there. So when a device's op ends, the next op's start
  (the end plus the overhead) and end are known at once if the queue is not empty, and else as
  soon as the first op arrives. A device then has one event an op, its end; likewise a bus. The
  next instant is a minimum over 2 D numbers, without a heap.
  One case needs the instant in between: what starts later than now and takes no time must end in
  the second round of that instant, so its slot first wakes up at the start.
- Memory is kept by counting references in [O, D]: an entry counts what still holds output o on
  device d (consumers there, and on the producer's device the transfer). Entries return to 0 by
  themselves, so nothing has to be cleared from one placement to the next.
- Usage is compared with the peak only when it changes at a later instant than it last changed,
  so that what is freed and allocated in one instant never counts.

Legend: N ops, S segments (an output port, or the control port, of an op with at least one
consumer), E edges, O outputs, D devices, K device kinds, B placements. Segments are in the order
of (producer, port), the edges of a segment in the order of their consumers.

Slots 0..D-1 of `due` are devices, D..2D-1 are buses.
"""

from __future__ import annotations

import numba
import numpy as np

END = np.uint32(2**32 - 1)  # of a queue; also the output of a control segment


def compiled(**options):
  """`numba.njit` that caches on disk where it can: a read-only home directory is no error."""

  def decorate(function):
    try:
      return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no place to cache in
      return numba.njit(**options)(function)

  return decorate


@compiled(nogil=True)
def _simulate(place, tables, workspace, snapshots, from_snapshot, record, starts, peak_bytes):
  """Simulates one placement [N] int32; returns its step time.

  With `record` it saves its state in `snapshots` after every N / (K + 1) ops that have ended. With
  `from_snapshot` >= 0 it goes on from there instead of from the beginning; links of queues, start
  times and what is known of each transfer are written once a run and not part of a snapshot, and
  must be there from the run that took it.

  Args:
    tables: what does not depend on the placement:
      op_segments [N+1] uint32, segment_edges [S+1] uint32, edge_consumers [E] uint32,
      segment_outputs [S] uint32 (END for control), segment_bytes [S] float64,
      segment_fetched [S] int32 (1 for an output that is held to the end of the step),
      in_degrees [N] int32, roots (ops without inputs) uint32, input_offsets [N+1] uint32,
      input_outputs (outputs that each op reads) uint32, fetched (outputs that are fetched and
      also consumed) uint32, fetched_ops (their producers) uint32, persistent_ops (ops that hold
      persistent bytes) uint32, compute_us [N, K] float64, persistent_bytes [N] float64,
      hold_bytes [N] float64 (taken when an op starts), release_bytes [N] float64 (given back
      when it ends), output_bytes [O] float64, kinds [D] uint32, bandwidth [D, D] float64 (inf on
      the diagonal), latency [D, D] float64 (-1 on the diagonal), overhead_us float.
    workspace: as `make_workspace` makes it.
    snapshots: as `make_snapshots` makes it.
    from_snapshot: -1 for the beginning.
    record: whether snapshots after `from_snapshot` are taken.
    starts: [N] float64, filled.
    peak_bytes: [D] float64, filled.
  """
  (op_segments, segment_edges, edge_consumers, segment_outputs, segment_bytes, segment_fetched,
   in_degrees, roots, input_offsets, input_outputs, fetched, fetched_ops, persistent_ops,
   compute_us, persistent_bytes, hold_bytes, release_bytes, output_bytes, kinds, bandwidth,
   latency, overhead_us) = tables
  (missing, ready, next_op, next_segment, references, segment_us, segment_wait_us,
   segment_start_us, slot_us, slot_items, slot_flags, round_items, device_state) = workspace
  (saved_missing, saved_references, saved_slot_us, saved_slot_items, saved_slot_flags,
   saved_device_state, saved_moments) = snapshots
  n = in_degrees.shape[0]
  d_count = np.uint64(kinds.shape[0])
  slots = np.uint64(2 * kinds.shape[0])
  due = slot_us[0]  # inf while idle
  free_us = slot_us[1]
  pause_us = slot_us[2]  # what follows the end of `current`
  current = slot_items[0]
  head = slot_items[1]
  tail = slot_items[2]
  idle = slot_flags[0]
  waking = slot_flags[1]
  ended = round_items[0]
  ended_keys = round_items[1]
  startable = round_items[2]
  usage = device_state[0]
  peak = device_state[1]
  touched_us = device_state[2]
  hold_us = device_state[3]  # when the current op takes its bytes; inf once done
  snapshot_count = saved_moments.shape[0] if record else 0
  stride = n // (saved_moments.shape[0] + 1) + 1
  snapshot = from_snapshot + 1  # the next to take
  ready_count = np.uint64(0)
  count = np.uint64(0)
  now = 0.0
  left = n
  if from_snapshot < 0:
    missing[:] = in_degrees
    due[:] = np.inf
    free_us[:] = 0.0
    head[:] = END
    idle[:] = True
    waking[:] = False
    usage[:] = 0.0
    peak[:] = 0.0
    touched_us[:] = 0.0
    hold_us[:] = np.inf
    for k in range(roots.shape[0]):
      ready[ready_count] = roots[k]
      ready_count += np.uint64(1)
  else:
    missing[:] = saved_missing[from_snapshot]
    references[:] = saved_references[from_snapshot]
    slot_us[:] = saved_slot_us[from_snapshot]
    slot_items[:] = saved_slot_items[from_snapshot]
    slot_flags[:] = saved_slot_flags[from_snapshot]
    device_state[:] = saved_device_state[from_snapshot]
    left = np.int64(saved_moments[from_snapshot, 1])
    for d in range(d_count):
      if head[d] != END:
        next_op[tail[d]] = END
      if head[d + d_count] != END:
        next_segment[tail[d + d_count]] = END

  while True:
    # One round: first what ended loses its dependencies ...
    startable_count = np.uint64(0)
    for k in range(count):
      x = ended[k]
      if waking[x]:  # it takes no time, and ends in the next round
        waking[x] = False
        if x < d_count:
          starts[current[x]] = now
          hold_us[x] = now
        else:
          segment_start_us[current[x]] = now
        continue
      idle[x] = True
      due[x] = np.inf
      free_us[x] = now + pause_us[x]
      startable[startable_count] = x
      startable_count += np.uint64(1)
      if x < d_count:  # an op ends
        i = current[x]
        left -= 1
        held = hold_bytes[i]
        if hold_us[x] < now:
          usage[x] += held
          held = 0.0
        if touched_us[x] < now:
          peak[x] = max(peak[x], usage[x])
          touched_us[x] = now
        if hold_us[x] == np.inf:
          held = 0.0
        hold_us[x] = np.inf
        freed = release_bytes[i]
        for k2 in range(input_offsets[i], input_offsets[i + 1]):
          output = input_outputs[k2]
          count_here = references[output, x] - 1
          references[output, x] = count_here
          if count_here == 0:
            freed += output_bytes[output]
        usage[x] += held - freed
        for s in range(op_segments[i], op_segments[i + 1]):
          here = segment_fetched[s]
          slowest = np.inf
          wait_us = -1.0
          for e in range(segment_edges[s], segment_edges[s + 1]):
            j = edge_consumers[e]
            d = np.uint32(place[j])
            # Without branches, which would be mispredicted half of the time; the diagonals
            # of bandwidth and latency leave both extremes as they are.
            local = np.int32(d == x)
            here += local
            remaining = missing[j] - local
            missing[j] = remaining
            ready[ready_count] = j
            ready_count += np.uint64((remaining == 0) & (d == x))
            slowest = min(slowest, bandwidth[x, d])
            wait_us = max(wait_us, latency[x, d])
          if wait_us >= 0.0:
            here += 1
            segment_us[s] = segment_bytes[s] / slowest
            segment_wait_us[s] = wait_us
            bus = x + d_count
            next_segment[s] = END
            if head[bus] == END:
              head[bus] = s
              startable[startable_count] = bus
              startable_count += np.uint64(1)
            else:
              next_segment[tail[bus]] = s
            tail[bus] = s
          output = segment_outputs[s]
          if output != END:
            references[output, x] = here
      else:  # a transfer ends
        source = x - d_count
        s = current[x]
        output = segment_outputs[s]
        for e in range(segment_edges[s], segment_edges[s + 1]):
          j = edge_consumers[e]
          d = np.uint32(place[j])
          remote = d != source
          remaining = missing[j] - np.int32(remote)
          missing[j] = remaining
          ready[ready_count] = j
          ready_count += np.uint64((remaining == 0) & remote)
          if output != END and remote:
            count_here = references[output, d] + 1
            references[output, d] = count_here
            if count_here == 1:
              if hold_us[d] < now:
                usage[d] += hold_bytes[current[d]]
                hold_us[d] = np.inf
              if touched_us[d] < now:
                peak[d] = max(peak[d], usage[d])
                touched_us[d] = now
              usage[d] += output_bytes[output]
        if output != END:
          count_here = references[output, source] - 1
          references[output, source] = count_here
          if count_here == 0:
            if hold_us[source] < now:
              usage[source] += hold_bytes[current[source]]
              hold_us[source] = np.inf
            if touched_us[source] < now:
              peak[source] = max(peak[source], usage[source])
              touched_us[source] = now
            usage[source] -= output_bytes[output]
    if left == 0:
      break

    # ... then what became ready is queued ...
    for k in range(ready_count):
      i = ready[k]
      d = np.uint32(place[i])
      next_op[i] = END
      if head[d] == END:
        head[d] = i
        startable[startable_count] = d
        startable_count += np.uint64(1)
      else:
        next_op[tail[d]] = i
      tail[d] = i
    ready_count = np.uint64(0)

    # ... and buses and devices start what they can, now or once they are free.
    for k in range(startable_count):
      x = startable[k]
      if not idle[x] or head[x] == END:
        continue
      i = head[x]
      start = max(now, free_us[x])
      current[x] = i
      idle[x] = False
      if x < d_count:
        head[x] = next_op[i]
        cost = compute_us[i, kinds[x]]
        end = start + cost
        pause_us[x] = overhead_us if cost > 0.0 else 0.0
        if end > start or start == now:
          due[x] = end
          starts[i] = start
          hold_us[x] = start
        else:
          due[x] = start
          waking[x] = True
      else:
        head[x] = next_segment[i]
        end = start + segment_us[i]
        pause_us[x] = segment_wait_us[i]
        if end > start or start == now:
          due[x] = end
          segment_start_us[i] = start
        else:
          due[x] = start
          waking[x] = True

    if snapshot < snapshot_count and n - left >= (snapshot + 1) * stride:
      saved_missing[snapshot] = missing
      saved_references[snapshot] = references
      saved_slot_us[snapshot] = slot_us
      saved_slot_items[snapshot] = slot_items
      saved_slot_flags[snapshot] = slot_flags
      saved_device_state[snapshot] = device_state
      saved_moments[snapshot, 0] = now
      saved_moments[snapshot, 1] = left
      snapshot += 1

    # What ends next? A round at the same instant, or a later one.
    now = np.inf
    bus_due = np.inf
    device = np.uint32(0)
    bus = np.uint32(0)
    for d in range(d_count):
      device = np.uint32(d) if due[d] < now else device
      now = due[d] if due[d] < now else now
      bus = np.uint32(d) if due[d + d_count] < bus_due else bus
      bus_due = due[d + d_count] if due[d + d_count] < bus_due else bus_due
    ended[0] = device if now < bus_due else np.uint32(bus + d_count)
    now = now if now < bus_due else bus_due
    count = np.uint64(0)
    for x in range(slots):
      count += np.uint64(due[x] == now)
    if count > 1:  # dependencies are lost in the order of (producer, port)
      count = np.uint64(0)
      for x in range(slots):
        ended[count] = x
        if due[x] == now:
          count += np.uint64(1)
      for k in range(np.int64(count)):
        x = ended[k]
        key = current[x]
        if x < d_count:
          key = op_segments[key]
        at = np.int64(k)
        while at > 0 and ended_keys[at - 1] > key:
          ended_keys[at] = ended_keys[at - 1]
          ended[at] = ended[at - 1]
          at -= 1
        ended_keys[at] = key
        ended[at] = x

  for d in range(d_count):
    if touched_us[d] < now:
      peak[d] = max(peak[d], usage[d])
  usage[:] = 0.0
  for k in range(persistent_ops.shape[0]):
    i = persistent_ops[k]
    usage[np.uint32(place[i])] += persistent_bytes[i]
  for d in range(d_count):
    peak_bytes[d] = peak[d] + usage[d]
  for k in range(snapshot, snapshot_count):
    saved_moments[k, 0] = np.inf  # not reached
  for k in range(fetched.shape[0]):
    references[fetched[k], np.uint32(place[fetched_ops[k]])] = 0
  return now


@compiled(nogil=True)
def simulate_range(
    placements, first, last, tables, workspace, snapshots, start_us, step_time_us, peak_bytes):
  """Simulates placements[first:last] one after the other; allocates nothing for each.

  Args:
    placements: [B, N] int32.
    first, last: which of them.
    tables, workspace: see `_simulate`.
    snapshots: of length 0.
    start_us: [B, N] float64, filled; or [1, N] where start times are not wanted.
    step_time_us: [B] float64, filled.
    peak_bytes: [B, D] float64, filled.
  """
  keep_starts = start_us.shape[0] == placements.shape[0]
  for b in range(first, last):
    step_time_us[b] = _simulate(
        placements[b], tables, workspace, snapshots, -1, False,
        start_us[b if keep_starts else 0], peak_bytes[b])


@compiled(nogil=True)
def simulate_change(
    placement, base, producer_offsets, producers, tables, workspace, snapshots, record, starts,
    peak_bytes):
  """Simulates a placement that differs from a recorded one from the last snapshot they share.

  Args:
    placement: [N] int32.
    base: the recorded one: placement [N] int32, then, as its run left them, starts [N],
      next_op [N], next_segment [S], segment_us [S], segment_wait_us [S], segment_start_us [S].
    producer_offsets: [N+1] int32.
    producers: [E] int32 producers of each op's inputs.
    tables, workspace, snapshots, record: see `_simulate`.
    starts: [N] float64, filled if `record`.
    peak_bytes: [D] float64, filled.

  Returns:
    (step time, snapshot it went on from or -1).
  """
  (base_placement, base_starts, base_next_op, base_next_segment, base_segment_us,
   base_segment_wait_us, base_segment_start_us) = base
  compute_us, kinds = tables[13], tables[18]
  same_until_us = np.inf
  for i in range(placement.shape[0]):
    if placement[i] != base_placement[i]:
      if producer_offsets[i] == producer_offsets[i + 1]:
        same_until_us = -1.0  # it was ready at 0
      for k in range(producer_offsets[i], producer_offsets[i + 1]):
        producer = producers[k]
        end = base_starts[producer] + compute_us[producer, kinds[base_placement[producer]]]
        same_until_us = min(same_until_us, end)
  moments = snapshots[6]
  from_snapshot = -1
  while from_snapshot + 1 < moments.shape[0] and moments[from_snapshot + 1, 0] < same_until_us:
    from_snapshot += 1
  if from_snapshot >= 0:
    next_op, next_segment, segment_us, segment_wait_us, segment_start_us = (
        workspace[2], workspace[3], workspace[5], workspace[6], workspace[7])
    if record:
      starts[:] = base_starts
      next_op[:] = base_next_op
      next_segment[:] = base_next_segment
      segment_us[:] = base_segment_us
      segment_wait_us[:] = base_segment_wait_us
      segment_start_us[:] = base_segment_start_us
    else:  # what was queued at the snapshot is all that is read again
      head, tail = snapshots[3][from_snapshot, 1], snapshots[3][from_snapshot, 2]
      d_count = kinds.shape[0]
      for d in range(d_count):
        i = head[d]
        while i != END:
          next_op[i] = base_next_op[i]
          i = base_next_op[i] if i != tail[d] else END
        s = head[d_count + d]
        while s != END:
          next_segment[s] = base_next_segment[s]
          segment_us[s] = base_segment_us[s]
          segment_wait_us[s] = base_segment_wait_us[s]
          s = base_next_segment[s] if s != tail[d_count + d] else END
  step_time_us = _simulate(
      placement, tables, workspace, snapshots, from_snapshot, record, starts, peak_bytes)
  return step_time_us, from_snapshot


def make_workspace(n: int, s: int, o: int, d: int) -> tuple:
  """What one thread needs to simulate graphs of n ops, s segments and o outputs on d devices."""
  return (
      np.empty(n, np.int32),  # missing: dependencies of each op that are not lost yet
      np.empty(n + 1, np.uint32),  # ready: ops that got ready in this round
      np.empty(n, np.uint32),  # next_op: links of the devices' queues
      np.empty(s, np.uint32),  # next_segment: links of the buses' queues
      np.zeros((o, d), np.int32),  # references: all 0 before and after
      np.zeros(s),  # segment_us: duration of each transfer, for what was sent
      np.zeros(s),  # segment_wait_us: latency after it
      np.zeros(s),  # segment_start_us
      np.empty((3, 2 * d)),  # due, free_us, pause_us
      np.zeros((3, 2 * d), np.uint32),  # current, head, tail
      np.empty((2, 2 * d), np.bool_),  # idle, waking
      np.zeros((3, 4 * d), np.uint32),  # ended, ended_keys, startable
      np.empty((4, d)),  # usage, peak, touched_us, hold_us
  )


def make_snapshots(k: int, n: int, o: int, d: int) -> tuple:
  """Room for k snapshots of a run."""
  return (
      np.empty((k, n), np.int32), np.empty((k, o, d), np.int32), np.empty((k, 3, 2 * d)),
      np.empty((k, 3, 2 * d), np.uint32), np.empty((k, 2, 2 * d), np.bool_), np.empty((k, 4, d)),
      np.full((k, 2), np.inf))  # now, left; inf where not reached
