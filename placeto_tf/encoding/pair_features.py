"""Features of (group, device) pairs, which describe the effect of moving the group to the device.

All features are relative, so that one set of weights serves any graph and any cluster: times are
divided by the step time or by the mean compute time of a group, bytes by memory limits or by all
bytes of the group.

Times in units of the mean compute time of a group go through `squash`, sign(x) log(1 + |x|).

Dimensions: N ops, G groups, M groups whose features are computed, D devices, K bins of the step's
time, F features. "In units" means in units of that mean compute time, "over" means divided by, and
"without g" means as if group g were not on the device. The memory of g on d is that which g holds
at the moment of d's peak.

  0 stays          1 if g is on d now
  1 compute        of g on d, in units
  2 compute_rise   compute of g on d minus that on its present device, in units
  3 load           of d without g, over the step
  4 load_excess    load of d with g minus the largest load, over the step
  5 load_relative  load of d without g minus the mean load of allowed devices, over the step
  6 comm_in        transfers to g from groups not on d, in units
  7 comm_out       transfers from g to groups not on d, in units
  8 comm_rise      comm_in + comm_out minus their sum on the present device, in units
  9 local_in       share of the bytes read by g that are on d
 10 local_out      share of the bytes sent by g that go to d
 11 local_groups   share of neighbours on d
 12 bus            of d: its outgoing transfers over the step
 13 bus_here       bus of the present device
 14 memory         peak of d with g, over the limit
 15 memory_share   memory of g, over the limit of d
 16 start          of g over the step
 17 span           from g's first start to its last end, over the step
 18 ready_rise     time at which inputs could be on d minus the present start, in units
 19 wait           time that g's ops spent in the queue, in units
 20 overlap        busy share of d without g while g computes, 0 to 1
 21 overlap_rise   overlap minus that on the present device
 22 busy_later     busy share of d from g's start on, 0 to 1
 23 slack          from g's end to the time at which consumers need g if it is on d, in units
 24 late           ready on d + compute - the time at which consumers need g, in units
 25 rank           longest path from g to the end, over the longest path
 26 depth          longest path to g, over the longest path
 27 queue          wait of the ops of d while g computes, per time computed, squashed
 28 devices        1 over the number of devices g may use
 29 slower         compute on d over that on the fastest device, minus 1, squashed
 30 degree         number of neighbours, squashed
 31 share          compute of g on d over the step, times 10, squashed
"""

from __future__ import annotations

import math
import re
from typing import Tuple

import numpy as np

from placeto_tf.encoding.pair_tables import PairTables
from placeto_tf.simulation.compiling import compiled, part

NAMES: Tuple[str, ...] = (
    "stays", "compute", "compute_rise", "load", "load_excess", "load_relative", "comm_in",
    "comm_out", "comm_rise", "local_in", "local_out", "local_groups", "bus", "bus_here", "memory",
    "memory_share", "start", "span", "ready_rise", "wait", "overlap", "overlap_rise", "busy_later",
    "slack", "late", "rank", "depth", "queue", "devices", "slower", "degree", "share")
NUM_FEATURES = len(NAMES)
# Name -> meaning, from the table above.
MEANINGS = dict(re.findall(r"^ *\d+ (\w+) +(.+)$", __doc__ or "", re.MULTILINE))
BINS = 32  # K, equal parts of the step time
MOMENTS = 256  # equal parts of the step time among which the moment of each peak is found
CLIP = 8.0  # the largest absolute value of a feature


@part
def squash(x):
  """Returns sign(x) log(1 + |x|).

  Returns:
    A number of the same sign, close to x near 0.
  """
  return math.log1p(x) if x >= 0 else -math.log1p(-x)


@compiled(nogil=True, _nrt=False)
def observe(place, start_us, tables, state):
  """Fills the state of one placement from its simulation.

  Args:
    place: [G] int32 device of each group.
    start_us: [N] float64 start of each op.
    tables: `PairTables`.
    state: (placement [G] int32, start [G], finish [G], wait [G], load [D], bus [D], memory [D],
      work [G, K], busy [D, K], queue [D, K], step [1], held [G, D], usage [D, MOMENTS + 1],
      until [D]), all float64 us or bytes. Placement, memory and step are given; start is infinite
      and the others are 0 at first, and are filled.
  """
  ops, op_groups, us_per_byte = tables.ops, tables.op_groups, tables.us_per_byte
  _, start, finish, wait, load, bus, _, work, busy, queue, step, _, usage, _ = state
  width = step[0] / BINS  # us of a bin
  # Ops: each adds its interval and its wait to its group and its device.
  for i in range(op_groups.shape[0]):
    g = op_groups[i]
    d = place[g]
    begin, length = start_us[i], ops.op_us[i, d]
    end = begin + length
    # A group spans from the first start of its ops to the last end.
    start[g] = min(start[g], begin)
    finish[g] = max(finish[g], end)
    # An op is ready when the last of its inputs has arrived on its device.
    ready = 0.0
    for e in range(ops.edge_offsets[i], ops.edge_offsets[i + 1]):
      p = ops.edge_producers[e]
      source = place[op_groups[p]]
      ready = max(
          ready, start_us[p] + ops.op_us[p, source] + ops.edge_bytes[e] * us_per_byte[source, d])
    # From ready to begin the op stood in the queue of its device.
    waited = max(0.0, begin - ready)
    wait[g] += waited
    first = min(BINS - 1, int(begin / width))
    # The whole wait counts in the bin in which the op begins.
    queue[d, first] += waited
    last = min(BINS - 1, int(end / width))
    # Computing time is divided among the bins that the interval overlaps.
    for k in range(first, last + 1):
      part = min(end, (k + 1) * width) - max(begin, k * width)
      if part > 0:
        work[g, k] += part
        busy[d, k] += part
  # Groups: each adds its compute time and its outgoing transfers to its device.
  for g in range(place.shape[0]):
    d = place[g]
    load[d] += tables.compute_us[g, d]
    for e in range(tables.out_offsets[g], tables.out_offsets[g + 1]):
      to = place[tables.out_groups[e]]
      # 0 within a device.
      bus[d] += tables.out_bytes[e] * us_per_byte[d, to] + tables.latency_us[d, to]
  # Memory: the changes of each device's bytes, then their sums and the moment of the largest sum.
  _hold(place, start_us, tables, state, False)
  for d in range(usage.shape[0]):
    now, most = 0.0, -1.0
    for k in range(MOMENTS):
      now += usage[d, k]
      if now > most:
        most, usage[d, MOMENTS] = now, k
  _hold(place, start_us, tables, state, True)


@part
def _hold(place, start_us, tables, state, at_peaks):
  """Adds the bytes that ops hold to the changes of devices' usage, or those at peaks to groups."""
  ops, op_groups = tables.ops, tables.op_groups
  _, _, _, _, _, _, _, _, _, _, step, held, usage, until = state
  a_us = MOMENTS / step[0]  # moments in a us
  for i in range(op_groups.shape[0]):
    g = op_groups[i]
    here = place[g]
    begin = start_us[i]
    end = begin + ops.op_us[i, here]
    if at_peaks:
      for d in range(until.shape[0]):
        held[g, d] += ops.persistent_bytes[i]
    _count(g, here, begin * a_us, end * a_us, ops.temporary_bytes[i], held, usage, at_peaks)
    for o in range(ops.output_offsets[i], ops.output_offsets[i + 1]):
      size = ops.output_bytes[o]
      # When the last reader on each device ends; the sender holds the output until it is sent.
      until[:] = 0.0
      until[here] = end
      for e in range(ops.reader_offsets[o], ops.reader_offsets[o + 1]):
        j = ops.readers[e]
        d = place[op_groups[j]]
        until[d] = max(until[d], start_us[j] + ops.op_us[j, d])
        until[here] = max(until[here], min(
            start_us[j], end + size * tables.us_per_byte[here, d] + tables.latency_us[here, d]))
      for d in range(until.shape[0]):
        if d != here and until[d] > 0.0 and not at_peaks:
          arrival = end + size * tables.us_per_byte[here, d] + tables.latency_us[here, d]
          _count(g, d, min(arrival, until[d]) * a_us, until[d] * a_us, size, held, usage, False)
      _count(g, here, begin * a_us, until[here] * a_us, size, held, usage, at_peaks)


@part
def _count(g, device, begin, end, size, held, usage, at_peaks):
  """Counts bytes that are held between two times, in moments; see `_hold`."""
  # Held at moment k if k + 0.5 is in between.
  first, last = min(MOMENTS, int(begin + 0.5)), min(MOMENTS, int(end + 0.5))
  if not at_peaks:
    usage[device, first] += size
    usage[device, last] -= size
  else:
    for d in range(usage.shape[0]):
      if first <= usage[d, MOMENTS] < last:
        held[g, d] += size


@part
def features(g, t, state, scratch, out):
  """Fills the features of one group on every allowed device.

  Args:
    g: the group.
    t: `PairTables`.
    state: as `observe` fills it.
    scratch: [6, D] float64, overwritten.
    out: [D, F] float32, filled for the devices that are allowed.
  """
  placement, start, finish, wait, load, bus, memory, work, busy, queue, step, own, _, _ = state
  comm_in, comm_out, ready, need, local_in, local_out = scratch  # [D] each
  d_count = load.shape[0]
  here = placement[g]
  step_us = step[0]
  width = step_us / BINS
  # Without consumers the outputs are needed at the end of the step.
  for d in range(d_count):
    comm_in[d], comm_out[d], ready[d] = 0.0, 0.0, 0.0
    local_in[d], local_out[d], need[d] = 0.0, 0.0, step_us
  neighbours = (t.in_offsets[g + 1] - t.in_offsets[g]) + (t.out_offsets[g + 1] - t.out_offsets[g])
  bytes_in, bytes_out = 0.0, 0.0
  # Producers: transfers to g, and when the last input could be on each device.
  for e in range(t.in_offsets[g], t.in_offsets[g + 1]):
    q = t.in_groups[e]
    source = placement[q]
    # A producer on a cycle may finish after g starts; its tensors for g came earlier.
    ended = min(finish[q], start[g])
    bytes_in += t.in_bytes[e]
    local_in[source] += t.in_bytes[e]
    for d in range(d_count):
      took = t.in_bytes[e] * t.us_per_byte[source, d] + t.latency_us[source, d]
      comm_in[d] += took
      ready[d] = max(ready[d], ended + took)
  # Consumers: transfers from g, and when the first of them needs an output.
  for e in range(t.out_offsets[g], t.out_offsets[g + 1]):
    q = t.out_groups[e]
    target = placement[q]
    # Likewise a consumer may start before g finishes.
    begins = max(start[q], finish[g])
    bytes_out += t.out_bytes[e]
    local_out[target] += t.out_bytes[e]
    for d in range(d_count):
      takes = t.out_bytes[e] * t.us_per_byte[d, target] + t.latency_us[d, target]
      comm_out[d] += takes
      need[d] = min(need[d], begins - takes)
  # Devices that g may use: their largest and mean load, their number, the fastest.
  largest, mean, usable, fastest = 0.0, 0.0, 0.0, np.inf
  for d in range(d_count):
    largest = max(largest, load[d])
    if t.allowed[g, d]:
      usable += 1.0
      mean += load[d]
      fastest = min(fastest, t.compute_us[g, d])
  # The mean load is that without g's own time on its present device.
  mean = (mean - t.compute_us[g, here]) / usable
  # Time that g computes, over all bins.
  computed = 0.0
  for k in range(BINS):
    computed += work[g, k]
  computed = max(computed, 1e-9)
  first = min(BINS - 1, int(start[g] / width))  # the bin in which g starts
  same_in, same_out = 0, 0
  for d in range(-1, d_count):  # the device now comes first: others are compared with it
    at = here if d < 0 else d
    row = out[at]
    if d >= 0 and not t.allowed[g, at]:
      continue
    overlap, queued, later = 0.0, 0.0, 0.0
    for k in range(BINS):
      # How busy the device is without g.
      others = busy[at, k] - (work[g, k] if at == here else 0.0)
      # Bins weigh by how much of g they hold.
      share = work[g, k] / computed
      overlap += share * others
      # At least 5 % of a bin in the divisor, so that nearly idle bins give no huge ratios.
      queued += share * queue[at, k] / max(busy[at, k], 0.05 * width)
      if k >= first:
        later += others
    overlap /= width
    later /= width * (BINS - first)
    comm = comm_in[at] + comm_out[at]
    # The first pass only stores the figures of the present device.
    if d < 0:
      overlap_here, comm_here = overlap, comm
      continue
    compute = t.compute_us[g, at]
    # Load without g, and memory with g.
    without = load[at] - (compute if at == here else 0.0)
    held = memory[at] + (0.0 if at == here else own[g, at])
    same_in, same_out = 0, 0
    for e in range(t.in_offsets[g], t.in_offsets[g + 1]):
      same_in += placement[t.in_groups[e]] == at  # producers on the device
    for e in range(t.out_offsets[g], t.out_offsets[g + 1]):
      same_out += placement[t.out_groups[e]] == at  # consumers on the device
    row[0] = 1.0 if at == here else 0.0  # stays
    row[1] = squash(compute / t.unit_us)  # compute
    row[2] = squash((compute - t.compute_us[g, here]) / t.unit_us)  # compute_rise
    row[3] = without / step_us  # load
    row[4] = (without + compute - largest) / step_us  # load_excess
    row[5] = (without - mean) / step_us  # load_relative
    row[6] = squash(comm_in[at] / t.unit_us)
    row[7] = squash(comm_out[at] / t.unit_us)
    row[8] = squash((comm - comm_here) / t.unit_us)  # comm_rise
    row[9] = local_in[at] / max(bytes_in, 1.0)
    row[10] = local_out[at] / max(bytes_out, 1.0)
    row[11] = (same_in + same_out) / max(neighbours, 1)  # local_groups
    row[12] = bus[at] / step_us
    row[13] = bus[here] / step_us  # bus_here
    row[14] = held / t.memory_bytes[at]  # memory
    row[15] = own[g, at] / t.memory_bytes[at]  # memory_share
    row[16] = start[g] / step_us
    row[17] = (finish[g] - start[g]) / step_us  # span
    row[18] = squash((ready[at] - start[g]) / t.unit_us)  # ready_rise
    row[19] = squash(wait[g] / t.unit_us)
    row[20] = overlap
    row[21] = overlap - overlap_here  # overlap_rise
    row[22] = later  # busy_later
    row[23] = squash((need[at] - finish[g]) / t.unit_us)  # slack
    row[24] = squash((ready[at] + compute - need[at]) / t.unit_us)  # late
    row[25] = t.rank[g]
    row[26] = t.depth[g]
    row[27] = squash(queued)  # queue
    row[28] = 1.0 / usable  # devices
    row[29] = squash(compute / max(fastest, 1e-9) - 1.0)  # slower
    row[30] = squash(neighbours)  # degree
    row[31] = squash(10.0 * compute / step_us)  # share
    for f in range(row.shape[0]):
      row[f] = min(CLIP, max(-CLIP, row[f]))


@compiled(nogil=True, _nrt=False)
def features_of(groups, tables, state, scratch, out):
  """Fills the features of several groups; see `features`.

  Args:
    groups: [M] int32.
    tables: `PairTables`.
    state: as `observe` fills it.
    scratch: [6, D] float64, overwritten.
    out: [M, D, F] float32, filled for the devices that are allowed.
  """
  for i in range(groups.shape[0]):
    features(groups[i], tables, state, scratch, out[i])


class PairState:
  """A simulated placement of a problem's groups, and the features of all pairs."""

  def __init__(self, tables: PairTables):
    self._tables = tables

  def observe(
      self, placement: np.ndarray, start_us: np.ndarray, step_us: float, peak_bytes: np.ndarray
  ) -> None:
    """Stores a simulated placement.

    Args:
      placement: [G] int32 device of each group.
      start_us: [N] start of each op.
      step_us: the step time.
      peak_bytes: [D] peak memory.
    """
    g, d = self._tables.allowed.shape
    # The order of `state` in `observe`. The step is the divisor of many features: never 0.
    self._state = (
        np.array(placement, np.int32), np.full(g, np.inf), np.zeros(g), np.zeros(g), np.zeros(d),
        np.zeros(d), np.array(peak_bytes, np.float64), np.zeros((g, BINS)), np.zeros((d, BINS)),
        np.zeros((d, BINS)), np.array([max(float(step_us), 1e-9)]), np.zeros((g, d)),
        np.zeros((d, MOMENTS + 1)), np.zeros(d))
    observe(self._state[0], start_us, self._tables, self._state)

  @property
  def held_bytes(self) -> np.ndarray:
    """Returns the bytes of each group that are held at the peak of each device, [G, D]."""
    return self._state[11]

  def features(self, groups: np.ndarray) -> np.ndarray:
    """Computes the features of groups on every device.

    Args:
      groups: [M] int32.

    Returns:
      [M, D, F] float32, 0 for devices that are not allowed.
    """
    d = len(self._tables.memory_bytes)
    found = np.zeros((len(groups), d, NUM_FEATURES), np.float32)
    features_of(groups, self._tables, self._state, np.zeros((6, d)), found)
    return found
