"""Symmetric search for replicas: an op and its copies move together.

If an op is on the k-th device of replica 0, its copy in replica r is on the k-th device of replica
r; a permutation of the devices for each replica says so. A graph of R replicas then has hardly more
supernodes to move than one replica. Ops that exist once (shared variables and their optimizer,
means) move on their own. In the end, `annealing` moves single groups without the symmetry.

Dimensions: N ops, N0 ops of one replica, U supernodes (coarse groups), D devices, R replicas.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.costs.estimate import from_work, work_of
from placeto_tf.grouping.heavy_edge import heavy_edge
from placeto_tf.problem import candidates
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method, plain, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.supernodes import Supernodes
from placeto_tf.replication.layouts import layouts
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph
from placeto_tf.search.annealing import DEFAULT_BUDGET, anneal, anneal_rounds
from placeto_tf.search.expert import balanced_pieces
from placeto_tf.search.layers import layer_positions
from placeto_tf.search.pipelines import stage_devices

# Number of supernodes of one replica, and share of the budget, of each level.
LEVELS = ((32, 0.15), (96, 0.35), (256, 0.5))


class SymmetricSupernodes(Supernodes):
  """Supernodes of an op and its copies, each of which moves to the device of its own replica.

  Attributes, besides those of `Supernodes`:
    images: [R, D] the device in replica r that corresponds to device d in replica 0.
  """

  def __init__(
      self, problem: PlacementProblem, replicated: ReplicatedGraph, supernode_of_op: np.ndarray,
      images: np.ndarray):
    """Makes the supernodes and restricts each of them to devices that all copies may use.

    Args:
      problem: of the replicated graph.
      replicated: the replicas.
      supernode_of_op: [N] labels 0..U-1, equal for an op and its copies.
      images: [R, D] int32, the device in replica r that corresponds to device d in replica 0.
    """
    super().__init__(problem, supernode_of_op)
    self.images = images
    # A copy that is colocated with an op that exists once goes to that op's device.
    once = np.zeros(problem.graph.num_ops, dtype=bool)
    once[problem.graph.colocation[replicated.replica_of_op == SHARED]] = True
    # [N] replica whose images map the supernode's device to the op's; 0 for ops that exist once.
    replica = np.where(
        once[problem.graph.colocation], 0, np.maximum(replicated.replica_of_op, 0))
    # A supernode's device is that of its first op.
    order = self._op_order
    self._op_order = order = order[np.lexsort((replica[order], self.supernode_of_op[order]))]
    self._replica_of = replica[order].astype(np.int32)
    # Allowed devices: every op of the supernode may use its own image of the device.
    may = problem.allowed_ops[order[:, None], images[self._replica_of]]
    self.allowed = np.logical_and.reduceat(may, self._op_offsets[:-1])
    self.movable = np.flatnonzero(self.allowed.sum(axis=1) > 1).tolist()

  def _images(self, num_devices: int) -> Tuple[np.ndarray, np.ndarray]:
    del num_devices
    return self.images, self._replica_of


def place_shares(problem: PlacementProblem, budget: Optional[Budget] = None) -> np.ndarray:
  """Evaluates layouts that give each replica a share of the devices and divide it by layers.

  A graph without replicas counts as one replica, and is placed on the first device.

  Args:
    problem: evaluates.
    budget: of the evaluations; None evaluates all layouts.

  Returns:
    [N] int32, the best layout.
  """
  replicated = problem.replicated
  if replicated is None:
    return candidates.best_of(problem, candidates.on_one_device(problem), budget)
  return _best_layout(problem, replicated, budget)[0]


def _best_layout(
    problem: PlacementProblem, replicated: ReplicatedGraph, budget: Optional[Budget]
) -> Tuple[np.ndarray, List[int]]:
  """Returns the best layout [N] and the order of devices that it uses."""
  found: List[np.ndarray] = []
  order_of: List[List[int]] = []
  # For each order of devices: whole replicas and, if shares have several devices, divided replicas.
  for devices in device_orders(problem, replicated.groups):
    some = list(layouts(replicated, problem.costs, devices))
    size = len(devices) // replicated.groups
    if size > 1:
      pieces = _pieces(problem, replicated, devices[:size])
      some += list(layouts(replicated, problem.costs, devices, pieces))
    found += [candidates.allowed_or_nearest(problem, each) for each in some]
    order_of += [devices] * len(some)
  best = candidates.best_of(problem, np.stack(found), budget)
  # If no layout fits, the best placement may have moved some of its layout's ops to a host.
  return best, order_of[int(np.argmax([(each == best).sum() for each in found]))]


def anneal_symmetric(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """Anneals supernodes of an op and its copies.

  Starts from the best layout of `place_shares`, because earlier placements need not be symmetric.
  A pipeline's stages are symmetric, so the search continues from those. Without replicas this is
  plain annealing.

  Args:
    problem: evaluates.
    budget: of the search; None allows 10,000 evaluations.
    seed: of the moves.

  Returns:
    [N] int32, the problem's best placement.
  """
  budget = budget or DEFAULT_BUDGET
  replicated = problem.replicated
  if replicated is None:
    return anneal(problem, budget, seed)
  best = problem.search_log.best_placement
  if replicated.micro_batches > 1 and best is not None:  # a pipeline's stages
    placement = best
    devices = stage_devices(problem.cluster, replicated.groups).ravel().tolist()
  else:
    placement, devices = _best_layout(problem, replicated, budget)
  if problem.search_log.exhausted(budget):
    return candidates.best_so_far(problem, placement)
  # Micro-batches of one group share devices, so each group's row of images repeats.
  images = device_images(devices, problem.num_devices, replicated.groups)
  images = np.repeat(images, replicated.micro_batches, axis=0)
  objective_us = float(problem.evaluate_ops(placement).objective_us[0])
  quotient = _Quotient(problem, replicated)
  return anneal_rounds(
      problem, lambda placement, count: SymmetricSupernodes(
          problem, replicated, quotient.supernodes(placement, count), images), LEVELS, placement,
      objective_us, budget, np.random.default_rng(seed))


def device_orders(problem: PlacementProblem, replicas: int) -> List[List[int]]:
  """Orders the devices so that each replica has an equal stretch; its main device comes first.

  In the first order stretches have about equal speed: equal devices keep their order, so that
  neighbours are in one replica; devices of unequal speed are dealt out in turn, fastest first, so
  that every replica gets a fast one. If links are unequal there may be a second order, which starts
  the stretches with devices that are as near to one another as possible. Replicas that are placed
  whole then exchange gradients inside a host, and the search moves ops to the other devices if the
  step gets shorter.

  Returns:
    One or two lists of the indices of all compute devices; leftover devices come last.
  """
  devices = candidates.compute_devices(problem)
  speeds, size = candidates.device_speeds(problem, devices), len(devices) // replicas
  if size and not np.allclose(speeds, speeds[0]):
    # Round robin by speed: replica r has the r-th, (r + R)-th, ... fastest device.
    ranked = [devices[i] for i in np.argsort(-speeds, kind="stable").tolist()]
    dealt = [ranked[r + k * replicas] for r in range(replicas) for k in range(size)]
    devices = dealt + ranked[size * replicas:]
  bandwidth = problem.cluster.bandwidth_bytes_per_us

  def slowest_link(some: Sequence[int]) -> float:
    return min((bandwidth[i, j] for i in some for j in some if i != j), default=np.inf)

  if size < 2 or replicas < 2:
    return [devices]
  sets = []  # each device with its nearest devices; the fastest device comes first and wins ties
  for device in devices:
    chosen = [device]
    while len(chosen) < replicas:
      others = [other for other in devices if other not in chosen]
      chosen.append(others[int(np.argmax([slowest_link([*chosen, other]) for other in others]))])
    sets.append(chosen)
  # The set whose slowest link is fastest.
  nearest = max(sets, key=slowest_link)
  # The first devices of the first order are as near to one another already.
  if slowest_link(nearest) <= slowest_link(devices[:size * replicas:size]):
    return [devices]
  rest = [device for device in devices if device not in nearest]
  # Each first device, followed by its replica's equal stretch of the remaining devices.
  dealt = [device for r, head in enumerate(nearest)
           for device in [head, *rest[r * (size - 1):(r + 1) * (size - 1)]]]
  return [devices, dealt + rest[replicas * (size - 1):]]


def device_images(devices: Sequence[int], count: int, replicas: int) -> np.ndarray:
  """Returns the image of each device in each replica; all replicas share hosts.

  Args:
    devices: the compute devices, replica by replica.
    count: D, the number of all devices.
    replicas: R.

  Returns:
    [R, D] int32, the device in replica r that corresponds to device d in replica 0.
  """
  images = np.tile(np.arange(count, dtype=np.int32), (replicas, 1))
  size = max(1, len(devices) // replicas)
  # Rotation by r stretches: position p of replica 0 goes to p + r * size.
  for r in range(replicas):
    for position, device in enumerate(devices):
      images[r, device] = devices[(position + r * size) % len(devices)]
  return images


class _Quotient:
  """Makes supernodes of one replica and copies them to all replicas."""

  def __init__(self, problem: PlacementProblem, replicated: ReplicatedGraph):
    self._problem, self._replicated = problem, replicated
    original = replicated.original
    self._costs = from_work(original, problem.cluster, work_of(original))
    self._allowed = allowed_devices(original, problem.cluster)
    self._first = np.full(original.num_ops, -1, dtype=np.int64)  # a copy, or an op that exists once
    known = np.flatnonzero(replicated.original_of_op >= 0)
    order = known[np.argsort(-replicated.replica_of_op[known], kind="stable")]
    self._first[replicated.original_of_op[order]] = order
    zero = known[replicated.replica_of_op[known] == 0]
    self._first[replicated.original_of_op[zero]] = zero

  def supernodes(self, placement: np.ndarray, count: int) -> np.ndarray:
    """Makes supernodes of one replica, and adds the supernodes of shared ops.

    Args:
      placement: [N] int32; all ops of a supernode are on one device in it.
      count: approximate number of supernodes of one replica.

    Returns:
      [N] labels 0..U-1, equal for an op and its copies.
    """
    replicated = self._replicated
    # [N0] device of a representative of each op.
    where = placement[np.maximum(self._first, 0)]
    # [N0, D] one-hot, combined with the allowed devices [N0, D] to pairs (device now, device
    # allowed). Only ops with a common pair may merge: they share a device and a possible target.
    here = np.arange(self._problem.num_devices) == where[:, None]
    allowed = (here[:, :, None] & self._allowed[:, None, :]).reshape(len(where), -1)
    # Ops on a device that they may not use get all pairs.
    allowed[~allowed.any(axis=1)] = True
    # [N0] labels of the supernodes of one replica.
    own = heavy_edge(replicated.original, self._costs, self._consistent(allowed), count)
    own = np.unique(own, return_inverse=True)[1].reshape(-1)
    labels = own[replicated.nearest_original].astype(np.int64)
    width = int(own.max()) + 1
    # Ops that exist once get labels beyond those of the replicas, one per label and device.
    shared = replicated.replica_of_op == SHARED
    labels[shared] = width + labels[shared] * self._problem.num_devices + placement[shared]
    return np.unique(self._merged(labels, placement), return_inverse=True)[1].reshape(-1)

  def _consistent(self, allowed: np.ndarray) -> np.ndarray:
    """Returns [N0, ...] the values true for all of an op's colocated set; if none is, all True."""
    colocation = self._replicated.original.colocation
    # Logical and over each set; sets without a common value are not restricted.
    common = np.ones_like(allowed)
    np.logical_and.at(common, colocation, allowed)
    common[~common.any(axis=1)] = True
    return common[colocation]

  def _merged(self, labels: np.ndarray, placement: np.ndarray) -> np.ndarray:
    """Moves all-reduces to a reader's supernode, and sets to that of an op that exists once."""
    replicated, graph = self._replicated, self._replicated.graph
    # All-reduces are ops that exist once and have no original.
    reduces = (replicated.original_of_op < 0) & (replicated.replica_of_op == SHARED)
    shared = replicated.replica_of_op == SHARED
    reader: Dict[int, int] = {}
    for producer, _, consumer in graph.edges:
      if reduces[producer] and shared[consumer] and placement[producer] == placement[consumer]:
        reader.setdefault(producer, consumer)
    # Readers first, so that chains of all-reduces end in one supernode.
    for op in graph.topological_order[::-1].tolist():
      if op in reader:
        labels[op] = labels[reader[op]]
    # A colocated set with an op that exists once belongs to that op's supernode.
    once = np.full(graph.num_ops, -1, dtype=np.int64)
    order = np.flatnonzero(shared)[::-1]
    once[graph.colocation[order]] = labels[order]
    return np.where(once[graph.colocation] >= 0, once[graph.colocation], labels)


def _pieces(
    problem: PlacementProblem, replicated: ReplicatedGraph, share: List[int]) -> np.ndarray:
  """Divides one replica by layers into pieces in proportion to its devices' speeds, [N0]."""
  original = replicated.original
  _, layer = np.unique(layer_positions(original), return_inverse=True)
  layer = layer.reshape(-1)
  # [N0] compute time of each original op, from one of its copies.
  first = np.zeros(original.num_ops)
  known = replicated.original_of_op >= 0
  first[replicated.original_of_op[known]] = problem.costs.compute_us[known].min(axis=1)
  return balanced_pieces(np.bincount(layer, first), candidates.device_speeds(problem, share))[layer]


METHODS = (
    Method("replica_shares", Kind.CONSTRUCTION, unseeded(place_shares), "replicas on shares"),
    Method("symmetric", Kind.SEARCH, plain(anneal_symmetric), "replicas moved together", rank=5))
