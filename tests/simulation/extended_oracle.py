"""The simulator with every extension in plain Python, for tests of the compiled one.

Events are tuples (time, producer, port, destination, what, device) in one heap, so that the order
of rule 4 (docs/simulator.md) is the order of tuples; port -2 is the end of the producer itself,
destination -1 is "all".
"""

import heapq
from collections import defaultdict, deque

import numpy as np
from oracle import OP_END, Oracle


class ExtendedOracle(Oracle):
  """Simulates placements under the extensions that the cluster switches on."""

  def __init__(self, graph, costs, cluster):
    super().__init__(graph, costs, cluster)
    self.cluster = cluster
    self.per_destination = cluster.transfer_per_destination or cluster.transfers != "device"

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
      now, launching = heap[0][0], []
      for event in [heapq.heappop(heap) for _ in range(sum(e[0] == now for e in heap))]:
        _, producer, port, destination, what, d = event
        pause_us = 0.0
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
          if self.compute_us[producer][self.kinds[d]]:
            pause_us = self.overhead_us
          if now + pause_us > now:
            launching.append(d)
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
        heapq.heappush(heap, (free_us, self.n, 0, 0, "device is free", d))

  def arrival(self, transfers, producer, port, device):
    return transfers[producer, port, device if self.per_destination else -1][1]

  def simulate(self, placement):
    """(step time, start of each op, transfers, peak memory)."""
    step, start, transfers = self.schedule(placement)
    return step, start, transfers, self.peaks(placement, step, start, transfers)


def random_extensions(seed):
  """Cluster fields, each on or off at random."""
  random = np.random.default_rng([seed, 1])

  def maybe(value, default):
    return value if random.random() < 0.4 else default

  return dict(
      transfers=maybe(str(random.choice(["pair", "unlimited"])), "device"),
      transfer_per_destination=maybe(True, False),
      sender_us_per_transfer=maybe(float(random.integers(1, 3)), 0.0),
      sender_us_per_byte=maybe(1.0, 0.0),
      receiver_us_per_transfer=maybe(float(random.integers(1, 3)), 0.0),
      receiver_us_per_byte=maybe(1.0, 0.0))
