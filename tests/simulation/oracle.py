"""The simulator once more, in plain Python, with every extension: what compiled loops are checked
against.

Written from the rules of docs/simulator.md alone, with other means: one heap of events whose
entries sort in the order of rule 4, every moment at which a device or bus gets free an event of its
own, and memory counted afterwards from the lifetimes of tensors, not by references on the way.

Heap entries are (time, producer, port, destination, what, device). Port -2 is the end of the
producer itself, destination -1 is "all"; "device is free" and "bus is free" have producer N, behind
all else.
"""

import heapq
from collections import defaultdict, deque

import numpy as np

OP_END = -2


class Oracle:
  """Simulates placements of one graph under the extensions that the cluster switches on."""

  def __init__(self, graph, costs, cluster):
    self.cluster = cluster
    self.per_destination = cluster.transfer_per_destination or cluster.transfers != "device"
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
    for producer, port, consumer in graph.edges:
      self.in_degrees[consumer] += 1
      self.outputs[producer].setdefault(port, []).append(consumer)
    self.outputs = [[(port, ports[port]) for port in sorted(ports)] for ports in self.outputs]
    self.roots = [i for i in range(self.n) if not self.in_degrees[i]]

  def link(self, device, destination):
    """The queue that a transfer waits in; with unlimited links none is ever busy."""
    return device, destination if self.cluster.transfers != "device" else -1

  def size_of(self, producer, port):
    return 0.0 if port < 0 else self.output_bytes[self.offsets[producer] + port]

  def receivers(self, place, producer, port, destination):
    """Devices that a transfer serves."""
    if destination >= 0:
      return {destination}
    return {place[c] for c in dict(self.outputs[producer])[port]} - {place[producer]}

  def schedule(self, placement):
    """(step time, start of each op, {(producer, port, destination): (start, end)})."""
    cluster, d_range, place = self.cluster, range(self.d), list(map(int, placement))
    packs = cluster.sender_us_per_transfer or cluster.sender_us_per_byte
    unpacks = cluster.receiver_us_per_transfer or cluster.receiver_us_per_byte
    waiting = list(self.in_degrees)
    queues, free = [deque() for _ in d_range], [True] * self.d
    buses, bus_free = defaultdict(deque), defaultdict(lambda: True)
    heap, starts, transfers, launched = [], [None] * self.n, {}, {}
    step = now = 0.0

    def lose(consumers):
      for consumer in consumers:
        waiting[consumer] -= 1
        if not waiting[consumer]:
          queues[place[consumer]].append((consumer, OP_END, -1, "op"))

    def arrive(producer, port, device):
      if unpacks:
        queues[device].append((producer, port, device, "unpack"))
      else:
        lose(c for c in dict(self.outputs[producer])[port] if place[c] == device)

    for i in self.roots:
      queues[place[i]].append((i, OP_END, -1, "op"))
    while True:
      for link in sorted(buses):
        while bus_free[link] and buses[link]:
          producer, port, destination = buses[link].popleft()
          d, to = link[0], self.receivers(place, producer, port, destination)
          bus_free[link] = cluster.transfers == "unlimited"
          end = now + max(self.size_of(producer, port) / self.bandwidth[d][r] for r in to)
          transfers[producer, port, destination] = (now, end)
          heapq.heappush(heap, (end, producer, port, destination, "sent", d))
      for d in d_range:
        if free[d] and queues[d]:
          producer, port, destination, what = queues[d].popleft()
          free[d] = False
          size = self.size_of(producer, max(port, -1))
          if what == "op":
            starts[producer] = now
            duration = self.compute_us[producer][self.kinds[d]]
          elif what == "pack":
            duration = cluster.sender_us_per_transfer + cluster.sender_us_per_byte * size
          else:
            duration = cluster.receiver_us_per_transfer + cluster.receiver_us_per_byte * size
          heapq.heappush(heap, (now + duration, producer, port, destination, what, d))
      if not heap:
        return step, starts, transfers
      now, launching = heap[0][0], {}
      for event in [heapq.heappop(heap) for _ in range(sum(e[0] == now for e in heap))]:
        _, producer, port, destination, what, d = event
        if what == "device is free":
          free[d] = True
        elif what == "bus is free":
          bus_free[d, destination] = True
        elif what == "pack":
          free[d] = True
          buses[self.link(d, destination)].append((producer, port, destination))
        elif what == "arrived":
          arrive(producer, port, d)
        elif what == "unpack":
          free[d] = True
          lose(c for c in dict(self.outputs[producer])[port] if place[c] == destination)
        elif what == "sent":
          to = self.receivers(place, producer, port, destination)
          for r in sorted(to):
            if now + self.latency[d][r] > now:
              heapq.heappush(heap, (now + self.latency[d][r], producer, port, r, "arrived", r))
            else:
              arrive(producer, port, r)
          link = self.link(d, destination)
          if now + self.gap_us > now:
            heapq.heappush(heap, (now + self.gap_us, self.n, 0, link[1], "bus is free", d))
          else:
            bus_free[link] = True
        else:
          step = now
          if self.overhead_us and self.compute_us[producer][self.kinds[d]]:
            launching[d] = self.compute_us[producer][self.kinds[d]]
          else:
            free[d] = True
          for out_port, consumers in self.outputs[producer]:
            lose(c for c in consumers if place[c] == d)
            to = sorted({place[c] for c in consumers} - {d})
            if to and not self.per_destination:
              to = [-1]
            for destination in to:
              if packs:
                queues[d].append((producer, out_port, destination, "pack"))
              else:
                buses[self.link(d, destination)].append((producer, out_port, destination))
      for d, free_us in self.pauses(launching, now, launched):
        free[d] = free_us == now
        if not free[d]:
          heapq.heappush(heap, (free_us, self.n, 0, 0, "device is free", d))

  def pauses(self, launching, now, launched):
    """(device, when it is free) of the devices whose kernels, of these times, ended in one round:
    GPUs of one host wait until their process has launched to all of them."""
    beside = {d: spent * self.cluster.overlapped_launches for d, spent in launching.items()}
    for d, beside_us in sorted(beside.items()):
      host = self.hosts[d]
      launched[host] = max(now - beside_us, launched.get(host, 0.0)) + self.launch_us
    return [(d, max(now + max(self.overhead_us - beside_us, 0.0), launched[self.hosts[d]]))
            for d, beside_us in beside.items()]

  def arrival(self, transfers, producer, port, device):
    return transfers[producer, port, device if self.per_destination else -1][1]

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
