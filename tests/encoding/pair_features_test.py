"""The compiled features against a plain account of what each of them means."""

import dataclasses

import numpy as np
import pytest

from placeto_tf.encoding.pair_features import BINS, MOMENTS, NAMES, PairState
from placeto_tf.encoding.pair_tables import PairTables
from placeto_tf.problem.placement_problem import PlacementProblem
from random_problem import grouped_graph, random_problem


def observed(problem, placement):
  state = PairState(PairTables.build(problem))
  found = problem.evaluate(placement)
  state.observe(placement, found.start_us[0], found.step_time_us[0], found.peak_memory_bytes[0])
  return state, found


def sample(problem, seed):
  rng = np.random.default_rng(seed)
  samples = np.where(problem.allowed, rng.random(problem.allowed.shape), -1)
  return samples.argmax(axis=1).astype(np.int32)


def squash(x):
  return np.sign(x) * np.log1p(np.abs(x))


class Oracle:
  """Every feature of one placement from its definition; slow and without loops kept in step."""

  def __init__(self, problem, placement, found):
    self.p, self.place = problem, placement
    self.grouped = grouped_graph(problem)
    self.step = float(found.step_time_us[0])
    self.peak = found.peak_memory_bytes[0]
    self.begin = found.start_us[0]
    groups = problem.grouping.group_of_op
    op_us = problem.costs.compute_us[:, problem.cluster.device_kinds]
    self.op_us = op_us[np.arange(problem.graph.num_ops), placement[groups]]
    self.end = self.begin + self.op_us
    self.width = self.step / BINS

  def transfer(self, size, a, b):
    if a == b:
      return 0.0
    cluster = self.p.cluster
    return size * self.us_per_byte(a, b) + (
        cluster.latency_us[a, b] + cluster.bus_gap_us
        + cluster.sender_us_per_transfer + cluster.receiver_us_per_transfer)

  def us_per_byte(self, a, b):
    cluster = self.p.cluster
    return (1 / cluster.bandwidth_bytes_per_us[a, b] + cluster.sender_us_per_byte
            + cluster.receiver_us_per_byte)

  def bins(self, ops):
    k = np.arange(BINS)[:, None]
    low = np.maximum(self.begin[ops], k * self.width)
    return np.maximum(np.minimum(self.end[ops], (k + 1) * self.width) - low, 0).sum(axis=1)

  def waits(self):
    graph, groups = self.p.graph, self.p.grouping.group_of_op
    ready = np.zeros(graph.num_ops)
    sizes = self.p.costs.output_bytes
    for u, v, o in zip(graph.edge_producers, graph.edge_consumers, graph.edge_outputs):
      a, b = self.place[groups[u]], self.place[groups[v]]
      moved = 0.0 if a == b else (
          sizes[o] if o >= 0 else 0.0) * self.us_per_byte(a, b)
      ready[v] = max(ready[v], self.end[u] + moved)
    return np.maximum(self.begin - ready, 0)

  def edges(self, g):
    e = self.grouped
    into = [(s, b) for s, t, b in zip(e.sources, e.targets, e.edge_bytes) if t == g]
    out = [(t, b) for s, t, b in zip(e.sources, e.targets, e.edge_bytes) if s == g]
    return into, out

  def bus(self, d):
    e = self.grouped
    return sum(
        self.transfer(b, d, self.place[t]) for s, t, b in zip(e.sources, e.targets, e.edge_bytes)
        if self.place[s] == d)

  def held(self, g, d):
    """The bytes that g holds at the moment of d's peak, of moments evenly spread over the step."""
    graph, costs, groups = self.p.graph, self.p.costs, self.p.grouping.group_of_op
    home = self.place[groups]
    intervals = [(i, home[i], 0.0, self.step, costs.persistent_bytes[i], True)
                 for i in range(graph.num_ops)]
    for i in range(graph.num_ops):
      intervals.append((i, home[i], self.begin[i], self.end[i], costs.temporary_bytes[i], True))
    for o in range(graph.num_outputs):
      i = int(np.searchsorted(graph.output_offsets, o, side="right")) - 1
      size, until = costs.output_bytes[o], self.end[i]
      readers = graph.edge_consumers[graph.edge_outputs == o]
      for to in set(home[readers]):
        last = self.end[readers[home[readers] == to]].max()
        if to != home[i]:
          arrival = self.end[i] + self.transfer(size, home[i], to)
          intervals.append((i, to, min(arrival, last), last, size, False))
          last = max(min(arrival, self.begin[j]) for j in readers[home[readers] == to])
        until = max(until, last)
      intervals.append((i, home[i], self.begin[i], until, size, True))
    moments = (np.arange(MOMENTS) + 0.5) * self.step / MOMENTS
    usage = sum(size * ((since <= moments) & (moments < until))
                for _, at, since, until, size, _ in intervals if at == d)
    peak = moments[np.argmax(np.round(usage))]
    return sum(size for i, _, since, until, size, own in intervals
               if own and groups[i] == g and since <= peak < until)

  def features(self, g, d):
    p, place, e = self.p, self.place, self.grouped
    groups = p.grouping.group_of_op
    here, step = place[g], self.step
    usable = np.flatnonzero(p.allowed[g])
    unit = np.where(p.allowed, e.compute_us, np.inf).min(axis=1)[p.allowed.sum(axis=1) > 1].mean()
    load = np.array([e.compute_us[place == k, k].sum() for k in range(p.num_devices)])
    without = load - e.compute_us[g, here] * (np.arange(p.num_devices) == here)
    into, out = self.edges(g)
    first = {q: self.begin[groups == q].min() for q in range(p.num_groups)}
    last = {q: self.end[groups == q].max() for q in range(p.num_groups)}

    def comm(k):
      return (sum(self.transfer(b, place[q], k) for q, b in into),
              sum(self.transfer(b, k, place[q]) for q, b in out))

    ready = max([0.0] + [
        min(last[q], first[g]) + self.transfer(b, place[q], d) for q, b in into])
    need = min([step] + [
        max(first[q], last[g]) - self.transfer(b, d, place[q]) for q, b in out])
    held = self.held(g, d)
    memory = self.peak[d] + (0 if d == here else held)
    work = self.bins(np.flatnonzero(groups == g))

    def overlap(k):
      ops = np.flatnonzero((place[groups] == k) & (groups != g))
      return float((work / work.sum() * self.bins(ops)).sum() / self.width)

    waits = self.waits()
    starts = np.minimum(BINS - 1, (self.begin / self.width).astype(int))
    queue = np.bincount(
        starts, np.where(place[groups] == d, waits, 0), minlength=BINS)
    busy = self.bins(np.flatnonzero(place[groups] == d))
    from_bin = min(BINS - 1, int(first[g] / self.width))
    others = self.bins(np.flatnonzero((place[groups] == d) & (groups != g)))
    bytes_in, bytes_out = sum(b for _, b in into), sum(b for _, b in out)
    compute = e.compute_us[g, d]
    tables = PairTables.build(p)
    return np.array([
        float(d == here), squash(compute / unit), squash((compute - e.compute_us[g, here]) / unit),
        without[d] / step, (without[d] + compute - load.max()) / step,
        (without[d] - without[usable].mean()) / step,
        squash(comm(d)[0] / unit), squash(comm(d)[1] / unit),
        squash((sum(comm(d)) - sum(comm(here))) / unit),
        sum(b for q, b in into if place[q] == d) / max(bytes_in, 1),
        sum(b for q, b in out if place[q] == d) / max(bytes_out, 1),
        sum(place[q] == d for q, _ in into + out) / max(len(into + out), 1),
        self.bus(d) / step, self.bus(here) / step, memory / p.cluster.memory_bytes[d],
        held / p.cluster.memory_bytes[d], first[g] / step, (last[g] - first[g]) / step,
        squash((ready - first[g]) / unit), squash(waits[groups == g].sum() / unit), overlap(d),
        overlap(d) - overlap(here), others[from_bin:].sum() / (self.width * (BINS - from_bin)),
        squash((need - last[g]) / unit), squash((ready + compute - need) / unit), tables.rank[g],
        tables.depth[g],
        squash((work / work.sum() * queue / np.maximum(busy, 0.05 * self.width)).sum()),
        1 / len(usable), squash(compute / e.compute_us[g, usable].min() - 1),
        squash(len(into + out)), squash(10 * compute / step)])


@pytest.mark.parametrize("devices, packing", [
    ("k80:2", {}), ("k80:1+p100:2+v100:1", {}),
    ("k80:2", dict(sender_us_per_transfer=3.0, sender_us_per_byte=1e-3,
                   receiver_us_per_transfer=5.0, receiver_us_per_byte=2e-3))])
def test_features_are_what_their_definitions_say(devices, packing):
  problem = random_problem(devices=devices)
  # Speeds that differ by device, which the random problem does not have.
  problem.costs.compute_us.flags.writeable = True
  problem.costs.compute_us[:] *= np.linspace(1, 2, problem.costs.num_kinds)
  problem = PlacementProblem(
      problem.graph, problem.costs, dataclasses.replace(problem.cluster, **packing),
      problem.grouping)
  placement = sample(problem, 1)
  state, found = observed(problem, placement)
  oracle = Oracle(problem, placement, found)
  for g in range(problem.num_groups):
    rows = state.features(np.array([g]))[0]
    for d in range(problem.num_devices):
      if not problem.allowed[g, d]:
        assert not rows[d].any()
        continue
      for name, value, want in zip(NAMES, rows[d], np.clip(oracle.features(g, d), -8, 8)):
        assert value == pytest.approx(want, rel=1e-4, abs=2e-5), (name, g, d)


def test_features_do_not_change_when_everything_takes_ten_times_as_long():
  problem = random_problem()
  slow = random_problem()
  slow.costs.compute_us.flags.writeable = True
  slow.costs.compute_us[:] *= 10
  cluster = slow.cluster
  cluster = dataclasses.replace(
      cluster, bandwidth_bytes_per_us=cluster.bandwidth_bytes_per_us / 10, **{
          each.name: getattr(cluster, each.name) * 10 for each in dataclasses.fields(cluster)
          if each.name.endswith("_us") and "bytes" not in each.name})
  slow = PlacementProblem(slow.graph, slow.costs, cluster, slow.grouping)
  placement = sample(problem, 3)
  fast_rows = observed(problem, placement)[0].features(np.array([5]))
  slow_rows = observed(slow, placement)[0].features(np.array([5]))
  np.testing.assert_allclose(fast_rows, slow_rows, rtol=1e-4, atol=1e-5)


def test_renaming_devices_of_one_kind_renames_the_rows():
  problem = random_problem(devices="k80:3")
  placement = sample(problem, 4)
  renamed = np.array([2, 0, 1, 3], np.int32)  # new name of each device
  rows = observed(problem, placement)[0].features(np.array([7]))[0]
  other = observed(problem, renamed[placement])[0].features(np.array([7]))[0]
  np.testing.assert_allclose(other[renamed], rows, rtol=1e-4, atol=1e-5)


def test_groups_with_one_allowed_device_are_not_movable():
  problem = random_problem()
  assert not problem.allowed[:, -1].any()  # the host takes nothing here
  np.testing.assert_array_equal(PairTables.build(problem).movable, np.arange(problem.num_groups))
  assert not len(PairTables.build(random_problem(devices="k80:1")).movable)
