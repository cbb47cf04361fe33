"""The simulator with every extension in plain Python, for tests of the compiled one.

Events are tuples (time, producer, port, destination, what, device) in one heap, so that the order
of rule 4 (docs/simulator.md) is the order of tuples; port -2 is the end of the producer itself,
destination -1 is "all".
"""

import heapq
from collections import deque

import numpy as np
from oracle import OP_END, Oracle


class ExtendedOracle(Oracle):
  """Simulates placements under the extensions that the cluster switches on."""

  def __init__(self, graph, costs, cluster):
    super().__init__(graph, costs, cluster)
    self.cluster = cluster

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
    queues, buses = [deque() for _ in d_range], [deque() for _ in d_range]
    free, bus_free = [True] * self.d, [True] * self.d
    heap, starts, transfers = [], [None] * self.n, {}
    step = now = 0.0

    def lose(consumers):
      for consumer in consumers:
        waiting[consumer] -= 1
        if not waiting[consumer]:
          queues[place[consumer]].append((consumer, OP_END, -1, "op"))

    for i in self.roots:
      queues[place[i]].append((i, OP_END, -1, "op"))
    while True:
      for d in d_range:
        if bus_free[d] and buses[d]:
          producer, port, destination = buses[d][0]
          to = self.receivers(place, producer, port, destination)
          buses[d].popleft()
          bus_free[d] = False
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
      now = heap[0][0]
      for event in [heapq.heappop(heap) for _ in range(sum(e[0] == now for e in heap))]:
        _, producer, port, destination, what, d = event
        pause_us = 0.0
        if what == "device is free":
          free[d] = True
        elif what == "bus is free":
          bus_free[d] = True
        elif what == "pack":
          free[d] = True
          buses[d].append((producer, port, destination))
        elif what == "unpack":
          free[d] = True
          lose(c for c in dict(self.outputs[producer])[port] if place[c] == destination)
        elif what == "sent":
          to = self.receivers(place, producer, port, destination)
          for r in sorted(to):
            if unpacks:
              queues[r].append((producer, port, r, "unpack"))
          if not unpacks:
            lose(c for c in dict(self.outputs[producer])[port] if place[c] in to)
          pause_us = max(self.latency[d][r] for r in to)
          if now + pause_us > now:
            heapq.heappush(heap, (now + pause_us, self.n, 0, 0, "bus is free", d))
          else:
            bus_free[d] = True
        else:
          step = now
          if self.compute_us[producer][self.kinds[d]]:
            pause_us = self.overhead_us
          if now + pause_us > now:
            heapq.heappush(heap, (now + pause_us, self.n, 0, 0, "device is free", d))
          else:
            free[d] = True
          for out_port, consumers in self.outputs[producer]:
            lose(c for c in consumers if place[c] == d)
            to = sorted({place[c] for c in consumers} - {d})
            if to and not cluster.transfer_per_destination:
              to = [-1]
            for destination in to:
              if packs:
                queues[d].append((producer, out_port, destination, "pack"))
              else:
                buses[d].append((producer, out_port, destination))

  def arrival(self, transfers, producer, port, device):
    return transfers[producer, port, device if self.cluster.transfer_per_destination else -1][1]

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
      transfer_per_destination=maybe(True, False),
      sender_us_per_transfer=maybe(float(random.integers(1, 3)), 0.0),
      sender_us_per_byte=maybe(1.0, 0.0),
      receiver_us_per_transfer=maybe(float(random.integers(1, 3)), 0.0),
      receiver_us_per_byte=maybe(1.0, 0.0))
