"""The order of TensorFlow's executor in plain Python: lists and deques, and no heap at all.

A timer is [end, (producer, port, destination), what] or None: one for each stream, bus and device
that unpacks. Every round ends the timers that are due and then starts what can start.
"""

from collections import defaultdict, deque

from oracle import OP_END, Oracle


class ExecutorOracle(Oracle):
  """Simulates placements under `ready_order="executor"`."""

  def __init__(self, graph, costs, cluster):
    super().__init__(graph, costs, cluster)
    self.inline = [op_type in cluster.inline_op_types for op_type in graph.op_types]

  def schedule(self, placement):
    """(step time, start of each op, {(producer, port, destination): (start, end)})."""
    cluster, place, devices = self.cluster, list(map(int, placement)), range(self.d)
    packs = cluster.sender_us_per_transfer or cluster.sender_us_per_byte
    unpacks = cluster.receiver_us_per_transfer or cluster.receiver_us_per_byte
    waiting, starts, transfers = list(self.in_degrees), [None] * self.n, {}
    inline, tasks = [[] for _ in devices], [deque() for _ in devices]
    unsent, unpacked = defaultdict(deque), [deque() for _ in devices]
    running_on = [[None] for _ in devices]
    buses, unpacking = defaultdict(lambda: None), [None for _ in devices]
    arrivals = []  # timers of transfers that a latency delays
    launched, launching, spent_us = {}, {}, {}  # device -> the time of its kernel that just ended
    now = 0.0

    def lose(consumers):
      """Those of the consumers that wait for nothing more."""
      ready = []
      for consumer in consumers:
        waiting[consumer] -= 1
        if not waiting[consumer]:
          ready.append(consumer)
      return ready

    def made_ready(device, entries):
      """`entries`: (is control, consumer, work) of what one op's end made ready on its device."""
      expensive = []
      for _, _, (key, what) in sorted(entries, key=lambda entry: entry[:2]):
        if what == "op" and self.inline[key[0]]:
          inline[device].append((key, what))
        else:
          expensive.append((key, what))
      if expensive and not inline[device]:
        inline[device].append(expensive.pop())
      tasks[device].extendleft(expensive)

    def op_ended(i, device):
      entries = []
      for port, consumers in self.outputs[i]:
        for j in lose(c for c in consumers if place[c] == device):
          entries.append((port < 0, j, ((j, OP_END, -1), "op")))
        away = [c for c in consumers if place[c] != device]
        for to in (sorted({place[c] for c in away}) if self.per_destination
                   else [-1] if away else []):
          if packs:  # it counts as its first consumer
            first = min(c for c in away if to in (-1, place[c]))
            entries.append((port < 0, first, ((i, port, to), "pack")))
          else:
            unsent[self.link(device, to)].append((i, port, to))
      made_ready(device, entries)

    def arrived(producer, port, to):
      if unpacks:
        unpacked[to].append((producer, port, to))
      else:
        deliver(producer, port, {to})

    def deliver(producer, port, to):
      for j in lose(c for c in dict(self.outputs[producer])[port] if place[c] in to):
        tasks[place[j]].append(((j, OP_END, -1), "op"))

    def end(d, slot, timers):
      _, (producer, port, to), what = timers[slot]
      timers[slot] = None
      pause_us = 0.0
      if what == "op":
        self.step = now
        op_ended(producer, d)
        if self.overhead_us and self.compute_us[producer][self.kinds[d]]:
          launching[d] = spent_us[producer]
      elif what == "pack":
        unsent[self.link(d, to)].append((producer, port, to))
      elif what == "unpack":
        deliver(producer, port, {to})
      elif what == "arrive":
        arrived(producer, port, to)
      elif what == "send":
        for r in sorted(self.receivers(place, producer, port, to)):
          if now + self.latency[d][r] > now:
            arrivals.append([now + self.latency[d][r], (producer, port, r), "arrive"])
          else:
            arrived(producer, port, r)
        pause_us = self.gap_us
      if now + pause_us > now:
        timers[slot] = [now + pause_us, (-1, 0, 0), "pause"]

    def start():
      for d, link_to in sorted(unsent):
        queue = unsent[d, link_to]
        while queue and (buses[d, link_to] is None or cluster.transfers == "unlimited"):
          producer, port, to = key = queue.popleft()
          end_us = now + max(self.size_of(producer, port) / self.bandwidth[d][r]
                             for r in self.receivers(place, *key))
          # Without queues each transfer has a link of its own.
          link = (d, link_to) if cluster.transfers != "unlimited" else (d, *key)
          buses[link] = [end_us, key, "send"]
          transfers[key] = (now, end_us)
      for d in devices:
        if unpacks and unpacking[d] is None and unpacked[d]:
          key = unpacked[d].popleft()
          spent = (cluster.receiver_us_per_transfer
                   + cluster.receiver_us_per_byte * self.size_of(*key[:2]))
          unpacking[d] = [now + spent, key, "unpack"]
          for timer in running_on[d]:
            if timer is not None:
              timer[0] += spent
      for d in devices:
        for slot, timer in enumerate(running_on[d]):
          if timer is None and (inline[d] or tasks[d]):
            key, what = inline[d].pop(0) if inline[d] else tasks[d].popleft()
            begin = now
            if unpacking[d] and unpacking[d][2] == "unpack":
              begin = unpacking[d][0]
            if what == "op":
              starts[key[0]] = now
              spent = self.compute_us[key[0]][self.kinds[d]]
              if any(other is not None and other[2] != "pause"
                     for e in devices if e != d for other in running_on[e]):
                spent += cluster.busy_slowdown * spent
              spent_us[key[0]] = spent
            else:
              spent = (cluster.sender_us_per_transfer
                       + cluster.sender_us_per_byte * self.size_of(*key[:2]))
            running_on[d][slot] = [begin + spent, key, what]

    self.step = 0.0
    for d in devices:
      made_ready(d, [(False, i, ((i, OP_END, -1), "op")) for i in self.roots if place[i] == d])
    while True:
      start()
      timers = [(d, 0, group) for d, group in enumerate(running_on)]
      timers += [(link[0], link, buses) for link in sorted(buses)]
      timers += [(d, d, unpacking) for d in devices]
      timers += [(0, slot, arrivals) for slot in range(len(arrivals))]
      running = [(d, slot, group) for d, slot, group in timers if group[slot] is not None]
      if not running:
        break
      now = min(group[slot][0] for _, slot, group in running)
      due = [entry for entry in running if entry[2][entry[1]][0] == now]
      for entry in sorted(due, key=lambda entry: entry[2][entry[1]][1]):
        end(*entry)
      for d, free_us in self.pauses(launching, now, launched):
        running_on[d][0] = [free_us, (-1, 0, 0), "pause"] if free_us > now else None
      launching.clear()
    return self.step, starts, transfers
