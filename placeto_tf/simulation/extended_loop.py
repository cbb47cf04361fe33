"""The event loop with every extension of the cluster, used only where one is switched on.

It follows the rules of docs/simulator.md round by round, without the shortcuts of
`event_loop`, and adds to them:

- one transfer a destination: an output wanted by several devices is queued on its producer's bus
  once for each, in the order of the devices, with the bandwidth and latency of that pair. (Else
  there is one transfer for all, which takes as long as its slowest pair.)
- contention at the receiver: a device receives one transfer at a time. The head of a bus waits
  until all its receivers are free, and so do the entries behind it; buses ask in the order of
  their devices. A receiver is free again when the transfer ends, without the latency.
- compute time of transfers: packing is queued on the sender's compute queue where the transfer
  would enter the bus queue, after the local consumers of the same output, and the transfer enters
  when it ends; unpacking is queued on each receiver when the transfer ends, and the consumers
  there lose their dependency when it ends. Neither has an overhead after it. In a queue by
  priority they count as their producer.
- compute streams: a device runs as many ops at once as it has streams, each at full speed and
  with its own overhead; the lowest free stream takes the next op.
- order by priority: of the ready ops a device takes the one with the highest priority, by arrival
  among equals.
- order of TensorFlow's executor, with one thread per device: a device has a queue of inline work
  and, behind it, a deque, from whose front it takes the next entry when there is nothing inline. Of
  what an op's end makes ready on its device (consumers of data before those of control, in the
  order of consumers; packing counts as its first consumer) the ops of inline types go into the
  queue; so does the last of the others, if the queue is empty then; the rest are put at the front
  of the deque one by one, so that the last is taken first. What arrives from elsewhere goes to
  the deque's back. Ops that are ready at 0 count as made ready by one op on each device. Unpacking,
  which other threads do, begins `delivery_us` after the transfer's end, waits for nothing but
  earlier unpacking, and stops what its device runs meanwhile.

Legend as in `event_loop`; M streams, T transfers of one placement (at most E), J jobs of packing
and unpacking (at most 2 E).
"""

from __future__ import annotations

import numpy as np

from placeto_tf.simulation.compiling import compiled

IDLE, BUSY, COOLING = 0, 1, 2
PACK, UNPACK = 0, 1
INLINE = 2.0**52  # above every other order, and exact less any number of arrivals


@compiled()
def _push(base, size, item, priority, arrival, items, priorities, arrivals):
  """Adds an item to the heap at items[base:base+size]."""
  at = size
  while at > 0:
    up = (at - 1) // 2
    if priorities[base + up] >= priority:  # what is there came earlier
      break
    items[base + at] = items[base + up]
    priorities[base + at] = priorities[base + up]
    arrivals[base + at] = arrivals[base + up]
    at = up
  items[base + at] = item
  priorities[base + at] = priority
  arrivals[base + at] = arrival


@compiled()
def _pop(base, size, items, priorities, arrivals):
  """Takes the first item from the heap at items[base:base+size]."""
  top = items[base]
  last = size - 1
  item, priority, arrival = items[base + last], priorities[base + last], arrivals[base + last]
  at = 0
  while 2 * at + 1 < last:
    down = 2 * at + 1
    right = down + 1
    if right < last and (
        priorities[base + right] > priorities[base + down]
        or (priorities[base + right] == priorities[base + down]
            and arrivals[base + right] < arrivals[base + down])):
      down = right
    if priority > priorities[base + down] or (
        priority == priorities[base + down] and arrival < arrivals[base + down]):
      break
    items[base + at] = items[base + down]
    priorities[base + at] = priorities[base + down]
    arrivals[base + at] = arrivals[base + down]
    at = down
  items[base + at] = item
  priorities[base + at] = priority
  arrivals[base + at] = arrival
  return top


@compiled()
def _sort(first, last, items, keys):
  """Sorts items[first:last] by keys, in place and stably."""
  for k in range(first + 1, last):
    item, key = items[k], keys[k]
    at = k
    while at > first and keys[at - 1] > key:
      items[at] = items[at - 1]
      keys[at] = keys[at - 1]
      at -= 1
    items[at] = item
    keys[at] = key


@compiled()
def _device(item, n, place, job_ints):
  """Where an op, or packing or unpacking, runs."""
  return np.int64(place[item]) if item < n else np.int64(job_ints[item - n, 2])


@compiled()
def _first_consumer(place, edge_consumers, first, last, source, destination):
  """The first consumer of a segment that is elsewhere, or on the destination where one is given."""
  for e in range(first, last):
    j = edge_consumers[e]
    if place[j] != source and (destination < 0 or place[j] == destination):
      return np.int64(j)
  return np.int64(-1)


@compiled(nogil=True)
def simulate_range(
    placements,  # [B, N] int32
    first,  # placements first..last-1 are simulated
    last,
    op_segments,
    segment_edges,
    edge_consumers,
    segment_ops,  # [S] int32
    segment_outputs,  # [S] int32, -1 for control
    segment_bytes,
    segment_fetched,
    in_degrees,
    roots,
    input_offsets,
    input_outputs,
    fetched,
    fetched_ops,
    persistent_ops,
    compute_us,
    persistent_bytes,
    hold_bytes,
    release_bytes,
    output_bytes,
    kinds,
    bandwidth,
    latency,
    overhead_us,
    per_destination,
    contention,
    pack_us,  # a transfer, a byte
    pack_byte_us,
    unpack_us,
    unpack_byte_us,
    streams,
    priority,  # [N] float64, higher first
    executor,  # whether the order is that of TensorFlow's executor
    inline_ops,  # [N] bool, ops that it runs inline
    delivery_us,  # from a transfer's end to its unpacking, under the executor's order
    references,  # workspace [O, D] int32, all 0 before and after
    start_us,  # out [B, N] float64, or [1, N] where start times are not wanted
    step_time_us,  # out [B] float64
    peak_bytes,  # out [B, D] float64
    op_streams,  # out [N], this and what follows of the last placement
    transfer_ints,  # out [E, 3]: segment, source, destination (-1 for all)
    transfer_times,  # out [E, 2]: start, end
    job_ints,  # out [2E, 4]: PACK or UNPACK, transfer, device, stream
    job_times,  # out [2E, 2]: start, end
):
  """Simulates placements first..last-1; returns how many transfers and jobs the last one had."""
  n = in_degrees.shape[0]
  edge_count = edge_consumers.shape[0]
  d_count = kinds.shape[0]
  packing = pack_us > 0 or pack_byte_us > 0
  unpacking = unpack_us > 0 or unpack_byte_us > 0 or (executor and delivery_us > 0)
  keep_starts = start_us.shape[0] == placements.shape[0]
  slots = d_count * streams  # slot d * streams + m, then one for each bus
  # After the buses, a slot a device for unpacking that does not queue with ops.
  all_slots = slots + (2 * d_count if executor else d_count)
  due = np.empty(all_slots)
  state = np.empty(all_slots, np.int64)
  current = np.empty(all_slots, np.int64)  # op, n + job, or transfer on a bus
  ended = np.empty(all_slots, np.int64)
  ended_keys = np.empty(all_slots, np.int64)
  receiving = np.empty(d_count, np.bool_)
  wanted = np.empty(d_count, np.bool_)
  usage = np.empty(d_count)
  missing = np.empty(n, np.int64)
  base = np.empty(d_count + 1, np.int64)
  size = np.empty(d_count, np.int64)
  capacity = n + (edge_count if packing else 0) + (edge_count if unpacking else 0)
  items = np.empty(capacity, np.int64)
  priorities = np.empty(capacity)
  arrivals = np.empty(capacity, np.int64)
  entering = np.empty(capacity, np.int64)  # items that enter a compute queue in this round
  causes = np.empty(capacity, np.int64)  # op whose end made them ready, n + device at 0, or -1
  turns = np.empty(capacity, np.int64)  # their order among those with the same cause
  inline_count = np.empty(d_count, np.int64)
  is_inline = np.empty(n + 2 * edge_count, np.bool_)  # of ops and jobs
  next_job = np.empty(2 * edge_count, np.int64)
  first_job = np.empty(d_count, np.int64)
  last_job = np.empty(d_count, np.int64)
  delivered_us = np.empty(2 * edge_count)  # when a job of unpacking may begin
  next_transfer = np.empty(edge_count, np.int64)
  head = np.empty(d_count, np.int64)
  tail = np.empty(d_count, np.int64)
  sent = np.empty(edge_count, np.int64)  # transfers that enter a bus queue in this round
  transfer_count = 0
  job_count = 0

  for b in range(first, last):
    place = placements[b]
    starts = start_us[b if keep_starts else 0]
    peak = peak_bytes[b]
    missing[:] = in_degrees
    due[:] = np.inf
    state[:] = IDLE
    receiving[:] = False
    usage[:] = 0.0
    peak[:] = 0.0
    head[:] = -1
    size[:] = 0
    inline_count[:] = 0
    first_job[:] = -1
    # Room for each device's queue: its ops, what it packs and what it unpacks.
    base[:] = 0
    for i in range(n):
      base[place[i] + 1] += 1
      for s in range(op_segments[i], op_segments[i + 1]):
        for e in range(segment_edges[s], segment_edges[s + 1]):
          if packing:
            base[place[i] + 1] += 1
          if unpacking:
            base[place[edge_consumers[e]] + 1] += 1
    for d in range(d_count):
      base[d + 1] += base[d]
    arrival = 0
    transfer_count = 0
    job_count = 0
    entering_count = 0
    for d in range(d_count if executor else 1):
      for k in range(roots.shape[0]):
        if executor and place[roots[k]] != d:
          continue
        entering[entering_count] = roots[k]
        causes[entering_count] = n + d
        turns[entering_count] = roots[k]
        entering_count += 1
    now = 0.0
    left = n
    count = 0

    while True:
      sent_count = 0
      for k in range(count):
        x = ended[k]
        if state[x] == COOLING:
          state[x] = IDLE
          due[x] = np.inf
          continue
        pause_us = 0.0
        arrived = -1  # the transfer whose consumers, on `receiver` or on all, lose it now
        receiver = -1
        if x >= slots + d_count:  # unpacking beside the ops ends
          arrived = job_ints[current[x] - n, 1]
          receiver = job_ints[current[x] - n, 2]
        elif x >= slots:  # a transfer ends
          t = current[x]
          s = transfer_ints[t, 0]
          source = x - slots
          output = segment_outputs[s]
          wanted[:] = False
          for e in range(segment_edges[s], segment_edges[s + 1]):
            d = place[edge_consumers[e]]
            if d != source and (transfer_ints[t, 2] < 0 or transfer_ints[t, 2] == d):
              pause_us = max(pause_us, latency[source, d])
              if output >= 0:
                references[output, d] += 1
                if not wanted[d]:
                  usage[d] += output_bytes[output]
              wanted[d] = True
          for d in range(d_count):
            if wanted[d]:
              receiving[d] = False
              if unpacking:
                job_ints[job_count, 0] = UNPACK
                job_ints[job_count, 1] = t
                job_ints[job_count, 2] = d
                if executor:
                  next_job[job_count] = -1
                  delivered_us[job_count] = now + delivery_us
                  if first_job[d] < 0:
                    first_job[d] = job_count
                  else:
                    next_job[last_job[d]] = job_count
                  last_job[d] = job_count
                else:
                  entering[entering_count] = n + job_count
                  entering_count += 1
                job_count += 1
          if output >= 0:
            references[output, source] -= 1
            if references[output, source] == 0:
              usage[source] -= output_bytes[output]
          if not unpacking:
            arrived = t
            receiver = transfer_ints[t, 2]
        elif current[x] >= n:  # packing or unpacking ends
          job = current[x] - n
          if job_ints[job, 0] == PACK:
            sent[sent_count] = job_ints[job, 1]
            sent_count += 1
          else:
            arrived = job_ints[job, 1]
            receiver = job_ints[job, 2]
        else:  # an op ends
          i = current[x]
          device = x // streams
          left -= 1
          if compute_us[i, kinds[device]] > 0:
            pause_us = overhead_us
          usage[device] -= release_bytes[i]
          for k2 in range(input_offsets[i], input_offsets[i + 1]):
            output = input_outputs[k2]
            references[output, device] -= 1
            if references[output, device] == 0:
              usage[device] -= output_bytes[output]
          for s in range(op_segments[i], op_segments[i + 1]):
            here = segment_fetched[s]
            wanted[:] = False
            any_wanted = False
            late = n if segment_outputs[s] < 0 else 0  # control comes after data
            for e in range(segment_edges[s], segment_edges[s + 1]):
              j = edge_consumers[e]
              if place[j] == device:
                here += 1
                missing[j] -= 1
                if missing[j] == 0:
                  entering[entering_count] = j
                  causes[entering_count] = i
                  turns[entering_count] = late + j
                  entering_count += 1
              else:
                wanted[place[j]] = True
                any_wanted = True
            for d in range(d_count if per_destination else int(any_wanted)):
              if per_destination and not wanted[d]:
                continue
              here += 1
              t = transfer_count
              transfer_count += 1
              transfer_ints[t, 0] = s
              transfer_ints[t, 1] = device
              transfer_ints[t, 2] = d if per_destination else -1
              if packing:
                job_ints[job_count, 0] = PACK
                job_ints[job_count, 1] = t
                job_ints[job_count, 2] = device
                entering[entering_count] = n + job_count
                causes[entering_count] = i
                turns[entering_count] = late + _first_consumer(
                    place, edge_consumers, segment_edges[s], segment_edges[s + 1], device,
                    d if per_destination else -1)
                entering_count += 1
                job_count += 1
              else:
                sent[sent_count] = t
                sent_count += 1
            if segment_outputs[s] >= 0:
              references[segment_outputs[s], device] = here
        if arrived >= 0:
          s = transfer_ints[arrived, 0]
          source = transfer_ints[arrived, 1]
          for e in range(segment_edges[s], segment_edges[s + 1]):
            j = edge_consumers[e]
            if place[j] != source and (receiver < 0 or receiver == place[j]):
              missing[j] -= 1
              if missing[j] == 0:
                entering[entering_count] = j
                causes[entering_count] = -1
                entering_count += 1
        if now + pause_us > now:
          state[x] = COOLING
          due[x] = now + pause_us
        else:
          state[x] = IDLE
          due[x] = np.inf
      if left == 0:
        break

      if executor:
        k = 0
        while k < entering_count:
          cause = causes[k]
          stop = k + 1
          while stop < entering_count and cause >= 0 and causes[stop] == cause:
            stop += 1
          _sort(k, stop, entering, turns)
          held = -1  # the latest of those that are not inline; put back by the next one
          for k2 in range(k, stop + 1):
            item = entering[k2] if k2 < stop else -1
            inline = False
            if cause >= 0 and item < 0:  # the last of them
              item = held
              if item < 0:
                break
              inline = inline_count[_device(item, n, place, job_ints)] == 0
            elif cause >= 0 and item < n and inline_ops[item]:
              inline = True
            elif cause >= 0:
              item, held = held, item
            if item < 0:
              continue
            d = _device(item, n, place, job_ints)
            order = np.float64(arrival + 1 if cause >= 0 else -arrival)
            if inline:
              order = INLINE - arrival
              inline_count[d] += 1
            is_inline[item] = inline
            _push(base[d], size[d], item, order, arrival, items, priorities, arrivals)
            size[d] += 1
            arrival += 1
          k = stop
      for k in range(0 if executor else entering_count):
        item = entering[k]
        if item < n:
          d = np.int64(place[item])
          first_op = item
        else:
          d = np.int64(job_ints[item - n, 2])
          first_op = segment_ops[transfer_ints[job_ints[item - n, 1], 0]]
        _push(base[d], size[d], item, priority[first_op], arrival, items, priorities, arrivals)
        size[d] += 1
        arrival += 1
      entering_count = 0
      for k in range(sent_count):
        t = sent[k]
        source = transfer_ints[t, 1]
        next_transfer[t] = -1
        if head[source] < 0:
          head[source] = t
        else:
          next_transfer[tail[source]] = t
        tail[source] = t

      for source in range(d_count):
        x = slots + source
        t = head[source]
        if state[x] != IDLE or t < 0:
          continue
        s = transfer_ints[t, 0]
        slowest = np.inf
        blocked = False
        for e in range(segment_edges[s], segment_edges[s + 1]):
          d = place[edge_consumers[e]]
          if d != source and (transfer_ints[t, 2] < 0 or transfer_ints[t, 2] == d):
            slowest = min(slowest, bandwidth[source, d])
            blocked = blocked or (contention and receiving[d])
        if blocked:
          continue
        for e in range(segment_edges[s], segment_edges[s + 1]):
          d = place[edge_consumers[e]]
          if d != source and (transfer_ints[t, 2] < 0 or transfer_ints[t, 2] == d):
            receiving[d] = True
        head[source] = next_transfer[t]
        state[x] = BUSY
        current[x] = t
        due[x] = now + segment_bytes[s] / slowest
        transfer_times[t, 0] = now
        transfer_times[t, 1] = due[x]

      for d in range(d_count if executor else 0):
        x = slots + d_count + d
        if state[x] != IDLE or first_job[d] < 0:
          continue
        job = first_job[d]
        if delivered_us[job] > now:
          state[x] = COOLING  # only to look again then
          due[x] = delivered_us[job]
          continue
        first_job[d] = next_job[job]
        spent = unpack_us + unpack_byte_us * segment_bytes[transfer_ints[job_ints[job, 1], 0]]
        state[x] = BUSY
        current[x] = n + job
        due[x] = now + spent
        job_ints[job, 3] = 0
        job_times[job, 0] = now
        job_times[job, 1] = due[x]
        for m in range(d * streams, (d + 1) * streams):
          if state[m] != IDLE:
            due[m] += spent

      for x in range(slots):
        d = x // streams
        if state[x] != IDLE or size[d] == 0:
          continue
        begin = now
        if executor and state[slots + d_count + d] == BUSY:
          begin = due[slots + d_count + d]
        item = _pop(base[d], size[d], items, priorities, arrivals)
        size[d] -= 1
        if executor and is_inline[item]:
          inline_count[d] -= 1
        state[x] = BUSY
        current[x] = item
        if item < n:
          due[x] = begin + compute_us[item, kinds[d]]
          starts[item] = now
          op_streams[item] = x % streams
          usage[d] += hold_bytes[item]
        else:
          job = item - n
          size_bytes = segment_bytes[transfer_ints[job_ints[job, 1], 0]]
          if job_ints[job, 0] == PACK:
            due[x] = begin + (pack_us + pack_byte_us * size_bytes)
          else:
            due[x] = begin + (unpack_us + unpack_byte_us * size_bytes)
          job_ints[job, 3] = x % streams
          job_times[job, 0] = now
          job_times[job, 1] = due[x]

      instant = due[0]
      for x in range(1, all_slots):
        instant = min(instant, due[x])
      if instant > now:  # what is held over an interval counts
        for d in range(d_count):
          peak[d] = max(peak[d], usage[d])
      now = instant
      count = 0
      for x in range(all_slots):
        if due[x] != now:
          continue
        # Dependencies are lost in the order of (producer, port, destination).
        if state[x] == COOLING:
          key = -1
        elif x >= slots and x < slots + d_count:
          key = transfer_ints[current[x], 0] * (d_count + 1) + transfer_ints[current[x], 2] + 1
        elif current[x] >= n:
          job = current[x] - n
          t = job_ints[job, 1]
          d = transfer_ints[t, 2] if job_ints[job, 0] == PACK else job_ints[job, 2]
          key = transfer_ints[t, 0] * (d_count + 1) + d + 1
        else:
          key = np.int64(op_segments[current[x]]) * (d_count + 1)
        at = count
        while at > 0 and ended_keys[at - 1] > key:
          ended_keys[at] = ended_keys[at - 1]
          ended[at] = ended[at - 1]
          at -= 1
        ended_keys[at] = key
        ended[at] = x
        count += 1

    step_time_us[b] = now
    usage[:] = 0.0
    for k in range(persistent_ops.shape[0]):
      i = persistent_ops[k]
      usage[place[i]] += persistent_bytes[i]
    for d in range(d_count):
      peak[d] += usage[d]
    for k in range(fetched.shape[0]):
      references[fetched[k], place[fetched_ops[k]]] = 0
  return transfer_count, job_count
