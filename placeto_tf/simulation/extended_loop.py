"""The event loop with every extension of the cluster, used only if one is switched on.

It follows the rules of docs/simulator.md round by round, without the shortcuts of
`event_loop`, and adds:

- One transfer per destination: an output for several devices is queued on its producer's bus once
  for each device, in the order of the devices, with the bandwidth of that pair. (Otherwise there is
  one transfer for all devices, which takes as long as its slowest pair.)
- Links: with "pair", each directed pair of devices has its own queue and gap, instead of the
  producer's bus; with "unlimited", a transfer begins at once.
- Compute time of transfers: packing is queued on the sender's compute queue at the time when the
  transfer would enter the bus queue, after the local consumers of the same output; the transfer
  enters the bus queue when packing ends. Unpacking is queued on each receiver when the transfer
  ends, and the consumers there lose their dependency when unpacking ends. Neither has an overhead.
- The order of TensorFlow's executor, with one thread per device. A device has a queue of inline
  work and a deque; if the queue is empty, the device takes the entry at the front of the deque.
  An op's end makes other ops on its device ready, in this order: consumers of data, then of
  control, each in the order of consumers; packing counts as the first consumer. Ready ops of inline
  types go into the queue; the last other op goes there too, if the queue is empty then; the
  remaining ops are put at the front of the deque one by one, so that the last is taken first. Ops
  that become ready by arrivals from other devices go to the back of the deque. Ops that are ready
  at 0 count as made ready by one op on each device. Other threads do the unpacking: it begins when
  the transfer arrives, waits only for earlier unpacking, and interrupts its device. An op that
  begins while another device computes or packs takes `busy_slowdown` times its compute time longer.

Dimensions as in `event_loop`; X slots, Q places in the compute queues, L links with a queue, T
transfers of one placement (at most E), J jobs of packing and unpacking (at most 2 E), V events of
transfers (at most 3 E: its end, when its link is free, and each arrival). Items are ops, and N + j
for job j.

Slot d of `due` is device d; under the executor's order a slot for each device's unpacking follows.
Events of transfers are kept in the order in which they happen, so that idle links cost nothing.

The parts of the loop are functions that the compiler inlines; reference counting is off, as in
`event_loop`, so nothing in this module may allocate.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.simulation.compiling import compiled, inlined
from placeto_tf.simulation.event_loop import END, finish, insert
from placeto_tf.simulation.heaps import pop, push

IDLE, BUSY, COOLING = 0, 1, 2
PACK, UNPACK = 0, 1
INLINE = -(2.0**52)  # below every other order, and exact even plus any number of arrivals
# Indices into `Workspace.counts`.
ENTERING, SENT, ARRIVALS, TRANSFERS, JOBS, FIRST, LAST = 0, 1, 2, 3, 4, 5, 6
# Kinds of events of transfers; the kind of an arrival is its device, 0 or more.
SENT_ALL, FREE = -1, -2


class Extensions(NamedTuple):
  """The extensions of the reference simulator; `Cluster` describes each."""

  per_destination: bool
  paired: bool  # whether each pair of devices has a link of its own
  queued: bool  # whether transfers wait for one another
  packing: bool  # whether packing takes time
  pack_us: float  # per transfer
  pack_byte_us: float
  unpacking: bool  # whether unpacking takes time
  unpack_us: float
  unpack_byte_us: float
  executor: bool  # whether the order is that of TensorFlow's executor
  inline_ops: np.ndarray  # [N] bool, ops that the executor runs inline
  busy_slowdown: float  # for ops that begin while another device computes, over compute time

  @classmethod
  def of(cls, cluster: Cluster, op_types: Sequence[str]) -> Extensions:
    """Reads the extensions of a cluster.

    Args:
      cluster: its fields switch extensions on.
      op_types: [N] of the ops.

    Returns:
      The extensions, as the compiled loop reads them.
    """
    pack = float(cluster.sender_us_per_transfer), float(cluster.sender_us_per_byte)
    unpack = float(cluster.receiver_us_per_transfer), float(cluster.receiver_us_per_byte)
    return cls(
        cluster.transfer_per_destination or cluster.transfers != "device",
        cluster.transfers == "pair", cluster.transfers != "unlimited", any(pack), *pack,
        any(unpack), *unpack, cluster.ready_order == "executor",
        np.array([op_type in cluster.inline_op_types for op_type in op_types], dtype=bool),
        float(cluster.busy_slowdown))


class Workspace(NamedTuple):
  """The arrays of one thread, reused from one placement to the next."""

  references: np.ndarray  # [O, D] int32, all 0 before and after
  missing: np.ndarray  # [N] int64, dependencies of each op that are not lost yet
  counts: np.ndarray  # [7] int64, see ENTERING
  due: np.ndarray  # [X] when a slot's state ends, inf while idle
  state: np.ndarray  # [X] int64, IDLE, BUSY or COOLING
  current: np.ndarray  # [X] int64, the item that runs
  ended: np.ndarray  # [X+V] int64, slots whose state ends in this round, and X + events
  ended_keys: np.ndarray  # [X+V] int64, the order in which their dependencies are lost
  wanted: np.ndarray  # [D] bool, devices that need the present output
  usage: np.ndarray  # [D] float64 bytes
  launched_us: np.ndarray  # [D] float64, when the process that launches to these devices has done
  queue_starts: np.ndarray  # [D+1] int64, the start of each compute queue in `items`
  queue_sizes: np.ndarray  # [D] int64
  inline_count: np.ndarray  # [D] int64, inline items in each compute queue
  items: np.ndarray  # [Q] int64, the compute queues, `heaps` by orders, of which no two are equal
  orders: np.ndarray  # [Q] float64
  entering: np.ndarray  # [Q] int64, items that enter a compute queue in this round
  causes: np.ndarray  # [Q] int64, op whose end made them ready, N + device at 0, or -1
  turns: np.ndarray  # [Q] int64, their order among those with the same cause
  is_inline: np.ndarray  # [N+2E] bool, of items
  busy: np.ndarray  # [L] bool, links that send, or are in the gap after that
  head: np.ndarray  # [L] int64, first transfer that waits for each link, or -1
  tail: np.ndarray  # [L] int64
  next_transfer: np.ndarray  # [E] int64
  sent: np.ndarray  # [E] int64, transfers that enter the queue of a link in this round
  event_us: np.ndarray  # [V] float64, events of transfers, those to come are FIRST:LAST
  event_keys: np.ndarray  # [V] int64, their order at one instant
  event_ints: np.ndarray  # [V, 2] int64: an arrival's device, SENT_ALL or FREE; transfer or link
  first_job: np.ndarray  # [D] int64, first unpacking that waits beside the ops, or -1
  last_job: np.ndarray  # [D] int64
  next_job: np.ndarray  # [2E] int64
  op_us: np.ndarray  # [N] float64, time of each op; it and all below are of the last placement
  transfer_ints: np.ndarray  # [E, 3] int32: segment, source, destination (-1 for all)
  transfer_times: np.ndarray  # [E, 2] float64: start, end
  job_ints: np.ndarray  # [2E, 3] int32: PACK or UNPACK, transfer, device
  job_times: np.ndarray  # [2E, 2] float64: start, end

  @classmethod
  def make(cls, n: int, e: int, o: int, d: int, extensions: Extensions) -> Workspace:
    """Allocates for graphs of n ops on d devices.

    Args:
      n, e, o, d: numbers of ops, edges, outputs and devices.
      extensions: they decide the numbers of slots, links and places in queues.

    Returns:
      A workspace; references are 0, most other arrays are not initialized.
    """
    # Two slots a device under the executor's order: its ops, and its unpacking.
    x, links = d * (2 if extensions.executor else 1), d * d if extensions.paired else d
    # Of a transfer at most its end, its free link and its arrivals: 3 events an edge.
    v, q = 3 * e, n + (int(extensions.packing) + int(extensions.unpacking)) * e

    def ints(size: int) -> np.ndarray:
      return np.empty(size, np.int64)

    return cls(
        references=np.zeros((o, d), np.int32), missing=ints(n), counts=np.zeros(7, np.int64),
        due=np.empty(x), state=ints(x), current=ints(x), ended=ints(x + v), ended_keys=ints(x + v),
        wanted=np.empty(d, np.bool_), usage=np.empty(d), launched_us=np.empty(d),
        queue_starts=ints(d + 1), queue_sizes=ints(d), inline_count=ints(d), items=ints(q),
        orders=np.empty(q), entering=ints(q), causes=ints(q), turns=ints(q),
        is_inline=np.empty(n + 2 * e, np.bool_), busy=np.empty(links, np.bool_), head=ints(links),
        tail=ints(links), next_transfer=ints(e), sent=ints(e), event_us=np.empty(v),
        event_keys=ints(v), event_ints=np.empty((v, 2), np.int64), first_job=ints(d),
        last_job=ints(d), next_job=ints(2 * e), op_us=np.zeros(n),
        transfer_ints=np.empty((e, 3), np.int32), transfer_times=np.empty((e, 2)),
        job_ints=np.empty((2 * e, 3), np.int32), job_times=np.empty((2 * e, 2)))


@compiled(_nrt=False)
def _sort(first, last, items, keys):
  """Sorts items[first:last] by keys, in place and stably."""
  for k in range(first + 1, last):
    insert(first, k, items[k], keys[k], items, keys)


@compiled(_nrt=False)
def _device(item, n, place, job_ints):
  """Returns the device on which an op, or packing or unpacking, runs."""
  return np.int64(place[item]) if item < n else np.int64(job_ints[item - n, 2])


@compiled(_nrt=False)
def _first_consumer(place, edge_consumers, first, last, source, destination):
  """Finds the first consumer elsewhere, or on the destination if it is not negative."""
  for e in range(first, last):
    j = edge_consumers[e]
    if place[j] != source and (destination < 0 or place[j] == destination):
      return np.int64(j)
  return np.int64(-1)


@inlined
def _receives(d, source, target):
  """Returns whether device d gets a transfer from the source to the target, -1 for all."""
  return d != source and (target < 0 or target == d)


@inlined
def _enter(item, cause, turn, w):
  """Marks an item as entering its compute queue in this round."""
  k = w.counts[ENTERING]
  w.entering[k] = item
  w.causes[k] = cause
  w.turns[k] = turn
  w.counts[ENTERING] = k + 1


@inlined
def _enqueue(item, d, order, w):
  """Adds an item to device d's compute queue."""
  push(w.queue_starts[d], w.queue_sizes[d], order, item, w.orders, w.items)
  w.queue_sizes[d] += 1
  w.counts[ARRIVALS] += 1


@inlined
def _reset(place, peak, tables, extensions, w):
  """Sets the workspace to the beginning of a step, where ops without inputs enter their queues."""
  n = tables.in_degrees.shape[0]
  d_count = tables.kinds.shape[0]
  for i in range(n):
    w.missing[i] = tables.in_degrees[i]
  w.counts[:] = 0
  w.due[:] = np.inf
  w.state[:] = IDLE
  w.usage[:] = 0.0
  w.launched_us[:] = 0.0
  peak[:] = 0.0
  w.busy[:] = False
  w.head[:] = -1
  w.queue_sizes[:] = 0
  w.inline_count[:] = 0
  w.first_job[:] = -1
  # Room for each device's queue: its ops, and its packing and unpacking.
  w.queue_starts[:] = 0
  for i in range(n):
    w.queue_starts[place[i] + 1] += 1
    if extensions.packing or extensions.unpacking:
      for s in range(tables.op_segments[i], tables.op_segments[i + 1]):
        for e in range(tables.segment_edges[s], tables.segment_edges[s + 1]):
          if extensions.packing:
            w.queue_starts[place[i] + 1] += 1
          if extensions.unpacking:
            w.queue_starts[place[tables.edge_consumers[e]] + 1] += 1
  # Prefix sums of the sizes: where each queue begins.
  for d in range(d_count):
    w.queue_starts[d + 1] += w.queue_starts[d]
  # Under the executor's order roots enter device by device, each group with a cause of its own.
  for d in range(d_count if extensions.executor else 1):
    for k in range(tables.roots.shape[0]):
      i = np.int64(tables.roots[k])
      if not extensions.executor or place[i] == d:
        _enter(i, n + d, i, w)


@inlined
def _append(item, queue, head, tail, following):
  """Adds an item to the end of a queue, a linked list: `head` and `tail` are by queue."""
  following[item] = -1
  if head[queue] < 0:
    head[queue] = item
  else:
    following[tail[queue]] = item
  tail[queue] = item


@inlined
def _add_job(kind, t, d, w):
  """Adds packing or unpacking of transfer t on device d; returns the number of the job."""
  job = w.counts[JOBS]
  w.counts[JOBS] = job + 1
  w.job_ints[job, 0] = kind
  w.job_ints[job, 1] = t
  w.job_ints[job, 2] = d
  return job


@inlined
def _add_unpacking(t, d, n, extensions, w):
  """Adds the job of unpacking transfer t on device d."""
  job = _add_job(UNPACK, t, d, w)
  # Under the executor's order unpacking has a queue of its own.
  if extensions.executor:
    _append(job, d, w.first_job, w.last_job, w.next_job)
  else:
    _enter(n + job, -1, 0, w)


@compiled(_nrt=False)
def _add_event(at_us, key, what, of, counts, event_us, event_keys, event_ints):
  """Adds an event: an arrival on device `what` or the end of transfer `of`, or a free link."""
  at = counts[LAST]
  # Insertion sort by (instant, key); most events come behind all others.
  while at > counts[FIRST] and (event_us[at - 1] > at_us or (
      event_us[at - 1] == at_us and event_keys[at - 1] > key)):
    event_us[at] = event_us[at - 1]
    event_keys[at] = event_keys[at - 1]
    event_ints[at, 0] = event_ints[at - 1, 0]
    event_ints[at, 1] = event_ints[at - 1, 1]
    at -= 1
  event_us[at] = at_us
  event_keys[at] = key
  event_ints[at, 0] = what
  event_ints[at, 1] = of
  counts[LAST] += 1


@inlined
def _add_transfer_event(at_us, what, t, d, tables, w):
  """Adds the end of transfer t (d -1 if it is for all), or its arrival on device d."""
  # The key orders one instant's events by (segment, destination), where -1 comes first.
  key = w.transfer_ints[t, 0] * (np.int64(tables.kinds.shape[0]) + 1) + d + 1
  _add_event(at_us, key, what, t, w.counts, w.event_us, w.event_keys, w.event_ints)


@inlined
def _deliver(t, receiver, place, tables, w):
  """Delivers the output of transfer t to its consumers on the receiver."""
  s = w.transfer_ints[t, 0]
  for e in range(tables.segment_edges[s], tables.segment_edges[s + 1]):
    j = np.int64(tables.edge_consumers[e])
    if place[j] == receiver:
      w.missing[j] -= 1
      if w.missing[j] == 0:
        _enter(j, -1, 0, w)


@inlined
def _arrive(t, d, place, tables, extensions, w):
  """Has transfer t unpacked on device d, or hands it to its consumers there."""
  if extensions.unpacking:
    _add_unpacking(t, d, tables.in_degrees.shape[0], extensions, w)
  else:
    _deliver(t, d, place, tables, w)


@inlined
def _begin_transfer(t, now, place, tables, w):
  """Starts transfer t."""
  s = w.transfer_ints[t, 0]
  source = w.transfer_ints[t, 1]
  target = w.transfer_ints[t, 2]
  slowest = np.inf
  for e in range(tables.segment_edges[s], tables.segment_edges[s + 1]):
    d = place[tables.edge_consumers[e]]
    if _receives(d, source, target):
      slowest = min(slowest, tables.bandwidth[source, d])
  # The slowest link among the receivers; `bandwidth` is in bytes/us.
  end = now + tables.segment_bytes[s] / slowest
  w.transfer_times[t, 0] = now
  w.transfer_times[t, 1] = end
  _add_transfer_event(end, np.int64(SENT_ALL), np.int64(t), np.int64(target), tables, w)


@inlined
def _free_link(link, now, place, tables, w):
  """Starts the next transfer on a link that has become free, if one waits."""
  t = w.head[link]
  w.busy[link] = t >= 0
  if t >= 0:
    w.head[link] = w.next_transfer[t]
    _begin_transfer(t, now, place, tables, w)


@inlined
def _link(t, tables, extensions, w):
  """Returns the link that transfer t waits for."""
  source = np.int64(w.transfer_ints[t, 1])
  # Link of a pair: source * D + destination; of a bus: its device.
  if extensions.paired:
    source = source * np.int64(tables.kinds.shape[0]) + w.transfer_ints[t, 2]
  return source


@inlined
def _end_transfer(t, now, place, tables, extensions, w):
  """Counts the copies that transfer t made on its receivers, where it arrives, now or later."""
  s = w.transfer_ints[t, 0]
  source = w.transfer_ints[t, 1]
  target = w.transfer_ints[t, 2]
  output = tables.segment_outputs[s]
  # Each receiver gets one copy, with as many references as it has consumers.
  w.wanted[:] = False
  for e in range(tables.segment_edges[s], tables.segment_edges[s + 1]):
    d = place[tables.edge_consumers[e]]
    if _receives(d, source, target):
      if output != END:
        w.references[output, d] += 1
        if not w.wanted[d]:
          w.usage[d] += tables.output_bytes[output]
      w.wanted[d] = True
  for d in range(tables.kinds.shape[0]):
    if w.wanted[d]:
      at_us = now + tables.latency[source, d]
      if at_us > now:
        _add_transfer_event(at_us, np.int64(d), np.int64(t), np.int64(d), tables, w)
      else:
        _arrive(t, d, place, tables, extensions, w)
  if output != END:
    w.references[output, source] -= 1
    if w.references[output, source] == 0:
      w.usage[source] -= tables.output_bytes[output]
  # The link is free again a gap after the end; key -1 comes before all ends of that instant.
  if extensions.queued:
    link = _link(t, tables, extensions, w)
    if now + tables.bus_gap_us > now:
      _add_event(
          now + tables.bus_gap_us, np.int64(-1), np.int64(FREE), link, w.counts, w.event_us,
          w.event_keys, w.event_ints)
    else:
      _free_link(link, now, place, tables, w)


@inlined
def _happen(event, now, place, tables, extensions, w):
  """Lets an event of transfers happen."""
  what = w.event_ints[event, 0]
  of = w.event_ints[event, 1]
  if what == SENT_ALL:
    _end_transfer(of, now, place, tables, extensions, w)
  elif what == FREE:
    _free_link(of, now, place, tables, w)
  else:
    _arrive(of, what, place, tables, extensions, w)


@inlined
def _release_memory(i, device, tables, w):
  """Frees the bytes of op i, and the inputs of which it was the last reader on its device."""
  w.usage[device] -= tables.release_bytes[i]
  for k in range(tables.input_offsets[i], tables.input_offsets[i + 1]):
    output = tables.input_outputs[k]
    w.references[output, device] -= 1
    if w.references[output, device] == 0:
      w.usage[device] -= tables.output_bytes[output]


@inlined
def _send(i, s, device, target, late, place, tables, extensions, w):
  """Adds a transfer of segment s to a target (-1: to all), and sends it, or packs it first."""
  t = w.counts[TRANSFERS]
  w.counts[TRANSFERS] = t + 1
  w.transfer_ints[t, 0] = s
  w.transfer_ints[t, 1] = device
  w.transfer_ints[t, 2] = target
  if extensions.packing:
    job = _add_job(PACK, t, device, w)
    # Packing takes its turn as the first consumer would, elsewhere than on this device.
    turn = late + _first_consumer(
        place, tables.edge_consumers, tables.segment_edges[s], tables.segment_edges[s + 1], device,
        target)
    _enter(tables.in_degrees.shape[0] + job, i, turn, w)
  else:
    k = w.counts[SENT]
    w.sent[k] = t
    w.counts[SENT] = k + 1


@inlined
def _end_op(i, device, place, tables, extensions, w):
  """Delivers the outputs of op i to consumers on its device, and queues transfers to others."""
  n = tables.in_degrees.shape[0]
  _release_memory(i, device, tables, w)
  for s in range(tables.op_segments[i], tables.op_segments[i + 1]):
    here = tables.segment_fetched[s]
    any_wanted = False
    w.wanted[:] = False
    late = n if tables.segment_outputs[s] == END else 0  # control comes after data
    for e in range(tables.segment_edges[s], tables.segment_edges[s + 1]):
      j = np.int64(tables.edge_consumers[e])
      if place[j] == device:
        here += 1
        w.missing[j] -= 1
        if w.missing[j] == 0:
          _enter(j, i, late + j, w)
      else:
        w.wanted[place[j]] = True
        any_wanted = True
    if any_wanted and extensions.per_destination:
      for d in range(tables.kinds.shape[0]):
        if w.wanted[d]:
          here += 1
          _send(i, s, device, d, late, place, tables, extensions, w)
    elif any_wanted:
      here += 1
      _send(i, s, device, -1, late, place, tables, extensions, w)
    # Consumers here, the fetch, and each transfer hold the output.
    if tables.segment_outputs[s] != END:
      w.references[tables.segment_outputs[s], device] = here


@inlined
def _end(x, now, place, tables, extensions, w):
  """Ends the op or job of slot x; returns the number of ops that ended, 0 or 1."""
  n = tables.in_degrees.shape[0]
  ops = np.int64(w.current[x] < n)
  w.state[x] = IDLE
  w.due[x] = np.inf
  if ops == 0:  # packing or unpacking ends
    job = w.current[x] - n
    if w.job_ints[job, 0] == PACK:
      w.sent[w.counts[SENT]] = w.job_ints[job, 1]
      w.counts[SENT] += 1
    else:
      _deliver(
          np.int64(w.job_ints[job, 1]), np.int64(w.job_ints[job, 2]), place, tables, w)
  else:
    i = w.current[x]
    # The overhead after an op is a state of its own, in which the slot starts nothing.
    if tables.compute_us[i, tables.kinds[x]] > 0 and tables.overhead_us > 0:
      w.state[x] = COOLING
      w.due[x] = now  # until `_launch`
    _end_op(i, x, place, tables, extensions, w)
  return ops


@inlined
def _launch(now, tables, w):
  """Has devices whose ops ended in this round wait until their process has launched to all."""
  for pass_number in range(2):
    for x in range(tables.kinds.shape[0]):  # the order of devices
      if w.state[x] != COOLING or w.due[x] > now:
        continue
      beside_us = tables.overlap[x] * w.op_us[w.current[x]]
      launcher = tables.launchers[x]
      if pass_number == 0:
        w.launched_us[launcher] = max(
            now - beside_us, w.launched_us[launcher]) + tables.launch_us
      else:
        w.due[x] = max(
            now + max(tables.overhead_us - beside_us, 0.0), w.launched_us[launcher])
        if w.due[x] <= now:  # all was launched beside the kernel
          w.state[x] = IDLE
          w.due[x] = np.inf


@inlined
def _queue_items(place, tables, extensions, w):
  """Queues the items that enter in this round, by arrival or in the order of the executor."""
  n = tables.in_degrees.shape[0]
  k = 0
  while k < w.counts[ENTERING]:
    # By arrival, causes do not matter: each item is a group of its own, behind all earlier items.
    cause = w.causes[k] if extensions.executor else np.int64(-1)
    stop = k + 1
    # Items made ready by one op's end are side by side; each other item is a group of its own.
    while stop < w.counts[ENTERING] and cause >= 0 and w.causes[stop] == cause:
      stop += 1
    _sort(k, stop, w.entering, w.turns)
    held = np.int64(-1)  # the latest item that is not inline; queued when the next one comes
    for k2 in range(k, stop + 1):
      item = w.entering[k2] if k2 < stop else np.int64(-1)
      inline = False
      if cause >= 0 and item < 0:  # the last of them
        item = held
        if item < 0:
          break
        # The last goes inline only if nothing inline waits on its device.
        inline = w.inline_count[_device(item, n, place, w.job_ints)] == 0
      elif cause >= 0 and item < n and extensions.inline_ops[item]:
        inline = True
      elif cause >= 0:
        item, held = held, item
      if item < 0:
        continue
      d = _device(item, n, place, w.job_ints)
      arrival = w.counts[ARRIVALS]
      # Least order first: inline items by arrival, then the deque's front, then its back.
      order = np.float64(-arrival - 1 if cause >= 0 else arrival)
      if inline:
        order = INLINE + arrival
        w.inline_count[d] += 1
      w.is_inline[item] = inline
      _enqueue(item, d, order, w)
    k = stop
  w.counts[ENTERING] = 0


@inlined
def _queue_transfers(now, place, tables, extensions, w):
  """Starts the transfers that were sent in this round, or queues them where the link is busy."""
  for k in range(w.counts[SENT]):
    t = w.sent[k]
    link = _link(t, tables, extensions, w) if extensions.queued else np.int64(0)
    if not extensions.queued or not w.busy[link]:
      w.busy[link] = True
      _begin_transfer(t, now, place, tables, w)
    else:
      _append(t, link, w.head, w.tail, w.next_transfer)
  w.counts[SENT] = 0


@inlined
def _job_us(job, tables, extensions, w):
  """Returns the time of a job: us for a transfer and us for each byte."""
  size_bytes = tables.segment_bytes[w.transfer_ints[w.job_ints[job, 1], 0]]
  if w.job_ints[job, 0] == PACK:
    spent = extensions.pack_us + extensions.pack_byte_us * size_bytes
  else:
    spent = extensions.unpack_us + extensions.unpack_byte_us * size_bytes
  return spent


@inlined
def _start_unpacking(d, x, now, tables, extensions, w):
  """Starts device d's next unpacking beside the ops, which stop meanwhile."""
  job = w.first_job[d]
  w.first_job[d] = w.next_job[job]
  spent = _job_us(job, tables, extensions, w)
  w.state[x] = BUSY
  w.current[x] = tables.in_degrees.shape[0] + job
  w.due[x] = now + spent
  w.job_times[job, 0] = now
  w.job_times[job, 1] = w.due[x]
  # The device stops meanwhile, so that its end moves by as much.
  if w.state[d] != IDLE:
    w.due[d] += spent


@inlined
def _others_compute(d, w):
  """Returns whether another device than d runs an op or a job; lower numbers start first."""
  found = False
  for x in range(w.queue_sizes.shape[0]):
    if w.state[x] == BUSY and x != d:
      found = True
  return found


@inlined
def _start_item(d, begin, now, starts, tables, extensions, w):
  """Starts the first item of device d's queue; its work begins at `begin`."""
  n = tables.in_degrees.shape[0]
  item = pop(w.queue_starts[d], w.queue_sizes[d], w.orders, w.items)
  w.queue_sizes[d] -= 1
  if extensions.executor and w.is_inline[item]:
    w.inline_count[d] -= 1
  w.state[d] = BUSY
  w.current[d] = item
  if item < n:
    spent = tables.compute_us[item, tables.kinds[d]]
    if extensions.busy_slowdown > 0 and _others_compute(d, w):
      spent += extensions.busy_slowdown * spent
    w.due[d] = begin + spent
    w.op_us[item] = spent
    starts[item] = now
    w.usage[d] += tables.hold_bytes[item]
  else:
    job = item - n
    w.due[d] = begin + _job_us(job, tables, extensions, w)
    w.job_times[job, 0] = now
    w.job_times[job, 1] = w.due[d]


@inlined
def _start(now, starts, tables, extensions, w):
  """Starts the next ops and jobs on free devices, and the next unpacking."""
  d_count = tables.kinds.shape[0]
  beside = d_count
  # Slots d_count + d unpack beside device d's ops, under the executor's order alone.
  for d in range(d_count if extensions.executor else 0):
    if w.state[beside + d] == IDLE and w.first_job[d] >= 0:
      _start_unpacking(d, beside + d, now, tables, extensions, w)
  for d in range(d_count):
    begin = now
    # An op that starts during unpacking begins its work when that ends.
    if extensions.executor and w.state[beside + d] == BUSY:
      begin = w.due[beside + d]
    if w.state[d] == IDLE and w.queue_sizes[d] > 0:
      _start_item(d, begin, now, starts, tables, extensions, w)


@inlined
def _key(x, tables, w):
  """Returns the key that orders slot x among slots that end now: producer, port, destination."""
  n = tables.in_degrees.shape[0]
  d_count = np.int64(tables.kinds.shape[0])
  item = w.current[x]
  # The end of an overhead loses no dependency, and goes first.
  if w.state[x] == COOLING:
    key = np.int64(-1)
  elif item >= n:
    job = item - n
    t = w.job_ints[job, 1]
    d = w.transfer_ints[t, 2] if w.job_ints[job, 0] == PACK else w.job_ints[job, 2]
    key = w.transfer_ints[t, 0] * (d_count + 1) + d + 1
  else:
    key = np.int64(tables.op_segments[item]) * (d_count + 1)
  return key


@inlined
def _next_round(now, peak, tables, w):
  """Finds the instant of the next round and how much ends then, in `ended`; counts peaks."""
  instant = w.due[0]
  first = w.counts[FIRST]
  if first < w.counts[LAST]:
    instant = min(instant, w.event_us[first])
  for x in range(w.due.shape[0]):
    instant = min(instant, w.due[x])
  if instant > now:  # bytes held over an interval count
    for d in range(tables.kinds.shape[0]):
      peak[d] = max(peak[d], w.usage[d])
  count = 0
  # Slots and events of this instant, sorted by (segment, destination).
  for x in range(w.due.shape[0]):
    if w.due[x] == instant:
      insert(0, count, x, _key(x, tables, w), w.ended, w.ended_keys)
      count += 1
  while first < w.counts[LAST] and w.event_us[first] == instant:
    insert(0, count, w.due.shape[0] + first, w.event_keys[first], w.ended, w.ended_keys)
    count += 1
    first += 1
  w.counts[FIRST] = first
  return instant, count


# The loop is not an inlined function, for the reason that `event_loop` states.
@compiled(nogil=True, _nrt=False)
def simulate_range(
    placements, first, last, tables, extensions, workspace, start_us, step_time_us, peak_bytes):
  """Simulates placements[first:last] one after the other; allocates nothing.

  Args:
    placements: [B, N] int32.
    first, last: which of them.
    tables: `SimulationTables`.
    extensions: `Extensions`.
    workspace: `Workspace`, made for these extensions.
    start_us: [B, N] float64, filled; or [1, N] where start times are not wanted.
    step_time_us: [B] float64, filled.
    peak_bytes: [B, D] float64, filled.
  """
  w = workspace
  keep_starts = start_us.shape[0] == placements.shape[0]
  for b in range(first, last):
    place, peak = placements[b], peak_bytes[b]
    starts = start_us[b if keep_starts else 0]
    left = tables.in_degrees.shape[0]
    _reset(place, peak, tables, extensions, w)
    now = 0.0
    count = 0
    while True:
      # One round: first, ended items remove dependencies ...
      for k in range(count):
        x = w.ended[k]
        if x >= w.due.shape[0]:
          _happen(x - w.due.shape[0], now, place, tables, extensions, w)
        elif w.state[x] == COOLING:
          w.state[x] = IDLE
          w.due[x] = np.inf
        else:
          left -= _end(x, now, place, tables, extensions, w)
      if left == 0:
        break
      _launch(now, tables, w)
      # ... then items that became ready are queued ...
      _queue_items(place, tables, extensions, w)
      _queue_transfers(now, place, tables, extensions, w)
      # ... and idle devices start, with ops and unpacking.
      _start(now, starts, tables, extensions, w)
      now, count = _next_round(now, peak, tables, w)
    finish(place, tables, w.references, w.usage, peak)
    step_time_us[b] = now
