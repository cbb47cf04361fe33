"""The reference simulator once more, in plain Python: what the compiled loop is checked against.

Written from the rules of docs/simulator.md alone, with other means: one heap of events whose
entries sort in the order of rule 4, every moment at which a device or bus gets free an event of its
own, and memory counted afterwards from the lifetimes of tensors, not by references on the way.

Heap entries are (time, producer, port, device): an op's end has port -2, so that it sorts by its
producer; "device is free" and "bus is free" have producers N and N + 1, behind all else. A
transfer's arrival on a device that its latency delays is (time, producer, port, D + device).
"""

import heapq
from collections import deque

import numpy as np

OP_END = -2


class Oracle:
  """Simulates placements of one graph; what does not depend on them is prepared once."""

  def __init__(self, graph, costs, cluster):
    self.n, self.d = graph.num_ops, cluster.num_devices
    self.kinds = cluster.device_kinds.tolist()
    self.compute_us = costs.compute_us.tolist()
    self.overhead_us = float(cluster.op_overhead_us)
    self.bandwidth = np.asarray(cluster.bandwidth_bytes_per_us).tolist()
    self.latency = np.asarray(cluster.latency_us).tolist()
    self.gap_us = float(cluster.bus_gap_us)
    self.launch_us = float(cluster.launch_us)
    self.hosts = [name.rpartition("/")[0] for name in cluster.device_names]
    self.offsets = graph.output_offsets.tolist()
    self.output_bytes = costs.output_bytes.tolist()
    self.temporary_bytes = costs.temporary_bytes.tolist()
    self.persistent_bytes = costs.persistent_bytes.tolist()
    self.fetched = graph.fetched_outputs.tolist()
    self.in_degrees = [0] * self.n
    self.outputs = [{} for _ in range(self.n)]  # op -> port -> consumers
    for producer, port, consumer in zip(
        graph.edge_producers.tolist(), graph.edge_ports.tolist(), graph.edge_consumers.tolist()):
      self.in_degrees[consumer] += 1
      self.outputs[producer].setdefault(port, []).append(consumer)
    self.outputs = [[(port, ports[port]) for port in sorted(ports)] for ports in self.outputs]
    self.roots = [i for i in range(self.n) if not self.in_degrees[i]]

  def schedule(self, placement):
    """(step time, start of each op, {(producer, port): (start, end)} of transfers)."""
    n, d_range, place = self.n, range(self.d), list(map(int, placement))
    overhead_us, kinds, outputs = self.overhead_us, self.kinds, self.outputs
    cost_us = [row[kinds[d]] for row, d in zip(self.compute_us, place)]
    waiting = self.in_degrees[:]
    ready, unsent = [deque() for _ in d_range], [deque() for _ in d_range]
    device_free, bus_free = [True] * self.d, [True] * self.d
    start, transfers, sent, heap, launched = [0.0] * n, {}, {}, [], {}
    push, pop = heapq.heappush, heapq.heappop
    def arrive(producer, port, devices):
      for consumer in sent[producer, port]:
        if place[consumer] in devices:
          waiting[consumer] -= 1
          if not waiting[consumer]:
            ready[place[consumer]].append(consumer)

    for i in self.roots:
      ready[place[i]].append(i)
    now = step = 0.0
    while True:
      for d in d_range:
        if bus_free[d] and unsent[d]:
          producer, port, duration = unsent[d].popleft()
          bus_free[d] = False
          transfers[producer, port] = (now, now + duration)
          push(heap, (now + duration, producer, port, d))
      for d in d_range:
        if device_free[d] and ready[d]:
          i = ready[d].popleft()
          device_free[d] = False
          start[i] = now
          push(heap, (now + cost_us[i], i, OP_END, d))
      if not heap:
        return step, start, transfers
      now = heap[0][0]
      launching = []
      while heap and heap[0][0] == now:
        _, producer, port, d = pop(heap)
        if producer == n:
          device_free[d] = True
        elif producer > n:
          bus_free[d] = True
        elif d >= self.d:
          arrive(producer, port, {d - self.d})
        elif port == OP_END:
          step = now
          pause_us = overhead_us if cost_us[producer] else 0.0
          if now + pause_us > now:
            launching.append(d)
          else:
            device_free[d] = True
          for out_port, consumers in outputs[producer]:
            remote = []
            for consumer in consumers:
              if place[consumer] == d:
                waiting[consumer] -= 1
                if not waiting[consumer]:
                  ready[d].append(consumer)
              else:
                remote.append(consumer)
            if remote:
              size = 0.0 if out_port < 0 else self.output_bytes[self.offsets[producer] + out_port]
              links = {place[consumer] for consumer in remote}
              unsent[d].append(
                  (producer, out_port, max(size / self.bandwidth[d][to] for to in links)))
              sent[producer, out_port] = remote
        else:
          late = {place[c] for c in sent[producer, port]}
          late = {to for to in late if now + self.latency[d][to] > now}
          for to in late:
            push(heap, (now + self.latency[d][to], producer, port, self.d + to))
          arrive(producer, port, {place[c] for c in sent[producer, port]} - late)
          if now + self.gap_us > now:
            push(heap, (now + self.gap_us, n + 1, 0, d))
          else:
            bus_free[d] = True
      for d, free_us in self.pauses(launching, now, launched):
        push(heap, (free_us, n, 0, d))

  def pauses(self, devices, now, launched):
    """(device, when it is free) of devices whose kernels ended in one round: GPUs of one host wait
    until their process has launched to all of them."""
    for d in devices:
      host = self.hosts[d]
      launched[host] = max(now, launched.get(host, 0.0)) + self.launch_us
    return [(d, max(now + self.overhead_us, launched[self.hosts[d]])) for d in devices]

  def arrival(self, transfers, producer, port, device):
    """When an output reaches another device: all at once in the reference simulator."""
    return transfers[producer, port][1]

  def lifetimes(self, placement, step, start, transfers):
    """[(device, from, to, bytes, op, what)] of all that is held for some time."""
    place = list(map(int, placement))
    end = [s + self.compute_us[i][self.kinds[place[i]]] for i, s in enumerate(start)]
    held = []
    for i in range(self.n):
      home = place[i]
      held.append((home, start[i], end[i], self.temporary_bytes[i]))
      consumers_of = dict(self.outputs[i])
      for output in range(self.offsets[i], self.offsets[i + 1]):
        port = output - self.offsets[i]
        last = {home: end[i]}
        for consumer in consumers_of.get(port, []):
          last[place[consumer]] = max(last.get(place[consumer], 0.0), end[consumer])
        arrived = {d: self.arrival(transfers, i, port, d) for d in last if d != home}
        last[home] = max([last[home], *arrived.values()])
        if self.fetched[output]:
          last[home] = step
        for d, until in last.items():
          held.append((d, arrived.get(d, start[i]), until, self.output_bytes[output]))
    return [entry for entry in held if entry[2] > entry[1]]

  def peaks(self, placement, step, start, transfers):
    """[D] peak memory: at one instant what is freed goes before what is allocated."""
    usage = [0.0] * self.d
    for i, d in enumerate(map(int, placement)):
      usage[d] += self.persistent_bytes[i]
    peak = usage[:]
    changes = []
    for d, since, until, size in self.lifetimes(placement, step, start, transfers):
      changes.append((since, 1, d, size))
      changes.append((until, 0, d, -size))
    changes.sort()
    for _, _, d, change in changes:
      usage[d] += change
      if usage[d] > peak[d]:
        peak[d] = usage[d]
    return peak

  def simulate(self, placement):
    """(step time, start of each op, transfers, peak memory)."""
    step, start, transfers = self.schedule(placement)
    return step, start, transfers, self.peaks(placement, step, start, transfers)
