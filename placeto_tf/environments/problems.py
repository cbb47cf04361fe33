"""The problems that policies train on: graphs, clusters (some random), and their starts.

Dimensions: N ops, G groups.
"""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.environments import made_problems
from placeto_tf.environments.timing import SIMULATED, Timing, timed
from placeto_tf.errors import PlacementError, PlacetoError
from placeto_tf.graphs import ComputationGraph
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.search_log import SearchLog
from placeto_tf.replication import check_specs, load_with_replicas
from placeto_tf.search import PLACERS, reference_placers

PRESETS = ("k80", "p100", "v100", "a100")
LEAST_DEVICES, MOST_DEVICES = 2, 8
_LISTS = ("heft", "m_etf")
_MIXED = 0.4  # share of random clusters with two kinds of devices


@dataclasses.dataclass(frozen=True, eq=False)
class StartedProblem:
  """A problem with placements to start from.

  Attributes:
    name: of graph and cluster.
    problem: simulates placements.
    starts: [S, G] int32 device of each group, the best start first.
  """

  name: str
  problem: PlacementProblem
  starts: np.ndarray

  def portable(self, num_threads: Optional[int]) -> StartedProblem:
    """Returns a copy for another process, with a simulator of its own; None keeps its threads."""
    problem = self.problem.portable(with_shapes=False)
    problem.simulator.num_threads = num_threads or problem.simulator.num_threads
    return dataclasses.replace(self, problem=problem)


def random_cluster(rng: random.Random) -> str:
  """Returns a cluster of 2 to 8 GPUs of one or two kinds, as `Cluster.parse` takes it."""
  count = rng.randint(LEAST_DEVICES, MOST_DEVICES)
  if rng.random() >= _MIXED:
    return f"{rng.choice(PRESETS)}:{count}"
  first, second = rng.sample(PRESETS, 2)
  part = rng.randint(1, count - 1)
  return f"{first}:{part}+{second}:{count - part}"


def expand_clusters(specs: Sequence[str], seed: int, graph_index: int) -> List[str]:
  """Returns the clusters of one graph.

  Args:
    specs: of clusters; "random[3]" stands for three sampled clusters, other specs are for all
      graphs.
    seed: of the samples.
    graph_index: number of the graph; each graph has samples of its own.

  Raises:
    PlacetoError: a spec that begins with "random" and is not random[COUNT].
  """
  clusters: List[str] = []
  # Each graph has its own stream, so that adding a graph does not change the others' clusters.
  rng = random.Random(f"{seed}/{graph_index}")
  for spec in specs:
    if not spec.startswith("random"):
      clusters.append(spec)
      continue
    match = re.fullmatch(r"random\[([1-9]\d{0,2})\]", spec)
    if not match:
      raise PlacetoError(f"cluster {spec!r} was not understood; expected random[3] or the like")
    clusters += [random_cluster(rng) for _ in range(int(match.group(1)))]
  return clusters


def make_problem(
    graph: ComputationGraph, cluster: Cluster, *, max_groups: int = 128,
    num_threads: Optional[int] = None) -> PlacementProblem:
  """Makes the problem of a graph on a cluster.

  Args:
    graph, cluster: of the problem.
    max_groups: the most groups of ops.
    num_threads: number of threads that simulate; by default all cores.
  """
  problem = PlacementProblem.build(graph, cluster, max_groups=max_groups)
  if num_threads:
    problem.simulator.num_threads = num_threads
  return problem


def with_starts(
    problem: PlacementProblem, name: str = "", *, lists: bool = False) -> StartedProblem:
  """Evaluates the starts of a problem: one device, the human-expert baseline and METIS.

  Args:
    problem: evaluates the starts.
    name: of the graph and the cluster.
    lists: whether list schedules are starts, too.

  Returns:
    The problem with its starts, the best first.

  Raises:
    PlacementError: no group of the problem can be moved.
  """
  # No group has a choice between devices.
  if not (problem.allowed.sum(axis=1) > 1).any():
    raise PlacementError("no group of the problem can be moved; leave it out of the training")
  placers = [*reference_placers().values(), *(PLACERS[each] for each in _LISTS if lists)]
  # Placers simulate their candidates; another clock times only what they choose.
  planned = problem if problem.clock is None else dataclasses.replace(
      problem, clock=None, search_log=SearchLog())
  starts = np.stack([problem.project(placer(planned)) for placer in placers])
  # Stable: of equal starts the simpler one is first.
  order = np.argsort(problem.evaluate(starts).objective_us, kind="stable")
  return StartedProblem(name, problem, starts[order].astype(np.int32))


def make_problems(
    graphs: Sequence[str], clusters: Sequence[str], *, lists: bool = False,
    timing: Timing = SIMULATED, workers: Sequence[str] = (), **options: Any
) -> Iterator[StartedProblem]:
  """Makes every graph on its clusters, and the starts of each.

  Args:
    graphs, clusters: as `RunConfig` has them.
    lists: see `with_starts`.
    timing, workers: see `timing.timed`.
    **options: of `named_problems`.

  Yields:
    The problems with their starts, graph after graph.
  """
  for name, problem in named_problems(graphs, clusters, **options):
    yield with_starts(timed(problem, timing, workers=workers), name, lists=lists)


def named_problems(
    graphs: Sequence[str], clusters: Sequence[str], *, max_groups: Sequence[int] = (128,),
    seed: int = 0, num_threads: Optional[int] = None) -> Iterator[Tuple[str, PlacementProblem]]:
  """Makes every graph on its clusters; `made_problems` come with clusters of their own.

  Args:
    graphs, clusters: as `RunConfig` has them.
    max_groups: numbers of groups, from which one is sampled for each problem.
    seed: of these samples, and of random clusters.
    num_threads: number of threads that simulate; by default all cores.

  Yields:
    The name of graph and cluster, and the problem, graph after graph.
  """
  graphs = made_problems.expand(graphs)
  # All specs are checked before the first graph is built.
  check_specs([name for name in graphs if not name.startswith(made_problems.PREFIX)])
  rng = random.Random(seed)
  for index, name in enumerate(graphs):
    if name.startswith(made_problems.PREFIX):
      problem = made_problems.make(name, max_groups=rng.choice(list(max_groups)))
      problem.simulator.num_threads = 1  # they are small
      yield name, problem
      continue
    graph = load_with_replicas(name)
    for cluster in expand_clusters(clusters, seed, index):
      problem = make_problem(
          graph, Cluster.parse(cluster), max_groups=rng.choice(list(max_groups)),
          num_threads=num_threads)
      yield name if len(clusters) == 1 else f"{name}@{cluster}", problem
