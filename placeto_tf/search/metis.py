"""METIS on the op graph: compute time as node weight, bytes as edge weight.

Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs"
(1998). METIS ignores the order of ops and queues, so several partitions are made (with several
seeds, balance constraints, and both recursive bisection and k-way), and the one with the shortest
simulated step is returned.

Dimensions: N ops, M nodes of ops that are placed together, D devices.
"""

from __future__ import annotations

import functools
import itertools
from typing import Callable, Iterable, Iterator, List, Optional

import numpy as np

from placeto_tf.grouping.contraction import Contraction, contract
from placeto_tf.problem import candidates as candidates_lib
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.metis_graph import MetisGraph

# Problem, nodes, devices of the parts and seed -> [M] index of each node's device, by partition.
Divide = Callable[[PlacementProblem, Contraction, List[int], int], Iterable[np.ndarray]]

SEEDS = 4
IMBALANCES = (0.05, 0.2, 0.5)  # fractions by which a part's weight may exceed its share


def partition_ops(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0, *,
    groups: bool = False, divide: Optional[Divide] = None) -> np.ndarray:
  """Evaluates partitions of the ops, without hosts, while the budget lasts.

  Args:
    problem: evaluates.
    budget: of the evaluations; None evaluates all partitions.
    seed: of the partitions.
    groups: whether the problem's groups are divided, instead of colocated sets.
    divide: makes the partitions; by default `partitions`.

  Returns:
    [N] int32, the best placement.
  """
  devices = candidates_lib.compute_devices(problem)
  # M nodes: ops with one label, weighted by compute time and traffic.
  contraction = contract(
      problem.graph, problem.costs, problem.allowed_ops,
      problem.grouping.group_of_op if groups else problem.graph.colocation)
  made: Iterable[np.ndarray] = [np.zeros(contraction.num_nodes, dtype=np.int32)]
  # With one device there is nothing to divide.
  if len(devices) > 1:
    made = (divide or partitions)(problem, contraction, devices, seed)
  candidates = []
  for parts in made:
    # Parts are positions among `devices`; [M] to [N] by each op's node.
    node_devices = np.asarray(devices, dtype=np.int32)[parts]
    candidates.append(
        candidates_lib.allowed_or_nearest(problem, node_devices[contraction.node_of_op]))
    # Partitions of a large graph take long: make no more than will be evaluated.
    enough = budget is not None and (
        len(candidates) == problem.search_log.remaining_evaluations(budget)
        or problem.search_log.exhausted(budget))
    if enough:
      break
  return candidates_lib.best_of(problem, np.stack(candidates), budget)


def partitions(
    problem: PlacementProblem, contraction: Contraction, devices: List[int], seed: int
) -> Iterator[np.ndarray]:
  """Yields partitions of the nodes, one for each seed, imbalance and algorithm.

  Args:
    problem: of the speeds of the devices.
    contraction: of M nodes.
    devices: the devices of the parts.
    seed: of METIS's seeds.

  Yields:
    [M] int32, index into `devices` of every node.
  """
  rng = np.random.default_rng(seed)
  # Each part's target weight is its device's share of the speed.
  shares = candidates_lib.device_speeds(problem, devices)
  # [patterns] bool, by bit mask of allowed devices: nodes that only hosts may run weigh nothing.
  movable = np.zeros(len(contraction.masks), dtype=bool)
  for i, mask in enumerate(contraction.masks):
    movable[i] = any(mask >> d & 1 for d in devices)
  graph = MetisGraph(contraction, movable[contraction.pattern])
  for _ in range(SEEDS):
    # k-way and recursive bisection, each with all imbalances.
    for imbalance, recursive in itertools.product(IMBALANCES, (False, True)):
      yield graph.partition(shares, imbalance, recursive, int(rng.integers(1 << 30)))


# METIS makes many partitions; it must not use up all of a small budget.
METHODS = (
    Method("metis", Kind.BASELINE, plain(partition_ops), title="METIS", rank=3, start_rank=5),
    Method("metis_groups", Kind.CONSTRUCTION, plain(functools.partial(partition_ops, groups=True)),
           rank=4, start_rank=4),
)
