"""The human-expert baseline: the fastest of the splits that an engineer would try.

Splits that keep forward and backward of a layer together:

- everything on the fastest device;
- layer by layer along the depth, on 2, 3, ... of the fastest devices: the layers of a device are
  consecutive, and the boundaries balance compute time;
- the same, but only recurrent layers have weight, so that each device gets about equally many of
  them; embeddings and softmax are placed beside the layers that they feed or read;
- branches side by side, and the stem (the layers that all data passes through) on one device. A
  branch is a connected part of the layers between two stem layers. Branches are placed heaviest
  first, each on the device that would finish its load first;
- if one device has too little memory, layer by layer so that all pieces fit.

Mirhoseini et al. 2017, section 4.1, and Addanki et al. 2019, section 4.1, describe their experts'
splits of recurrent models and of Inception-V3. Like them, this method evaluates each split.

Dimensions: N ops, L layers, P pieces, one a device.
"""

from __future__ import annotations

from typing import List, Optional

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from placeto_tf.problem import candidates
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.layers import forward_edges, layer_positions

_CORRECTIONS = 4  # of a split by memory
_PRODUCTS_OF_A_LAYER = 3  # forward, and the gradients of both operands


def place_by_hand(problem: PlacementProblem, budget: Optional[Budget] = None) -> np.ndarray:
  """Evaluates an expert's splits and returns the best.

  Splits by layers use 2, 3, ... devices; beyond 8 devices, the number of devices doubles each time.

  Args:
    problem: evaluates.
    budget: of the evaluations; None evaluates all splits.

  Returns:
    [N] int32, the best placement.
  """
  # [N] number of each op's layer along the depth, 0 to L - 1.
  _, layer = np.unique(layer_positions(problem.graph, distinct=True), return_inverse=True)
  layer = layer.reshape(-1)
  devices = candidates.compute_devices(problem)
  # Stable, so that equal devices keep their order.
  fastest = np.argsort(-candidates.device_speeds(problem, devices), kind="stable")
  counts = [k for k in range(len(devices), 0, -1) if k == len(devices) or k <= 8 or not k & (k - 1)]
  placements = []

  def place(piece: np.ndarray, used: List[int]) -> None:
    """Adds the placement of layers in pieces to the candidates.

    Args:
      piece: [L] int, the piece of each layer.
      used: [P] the device of each piece.

    Returns:
      None.
    """
    placements.append(candidates.allowed_or_nearest(
        problem, np.asarray(used, dtype=np.int32)[piece[layer]]))

  # Layers in consecutive pieces on the k fastest devices, in the cluster's order.
  for k in counts:
    used = [devices[i] for i in sorted(fastest[:k])]
    speeds = candidates.device_speeds(problem, used)
    place(balanced_pieces(_weights_us(problem, layer, used), speeds), used)
  weight = _weights_us(problem, layer, devices)
  # Layers with more matrix products than one layer needs are unrolled, and so recurrent.
  products = np.bincount(layer, np.array(problem.graph.op_types) == "MatMul")
  recurrent = products > _PRODUCTS_OF_A_LAYER
  if recurrent.any():
    place(balanced_pieces(weight * recurrent, candidates.device_speeds(problem, devices)), devices)
  # Branches side by side.
  place(_branches(problem, layer, weight, devices), devices)
  # If memory is short, the split that fits is evaluated before a small budget ends.
  placements = _split_by_memory(problem, layer) + placements
  # Without duplicates, in this order.
  _, first = np.unique(placements, axis=0, return_index=True)
  return candidates.best_of(problem, np.array(placements)[np.sort(first)], budget)


def _split_by_memory(problem: PlacementProblem, layer: np.ndarray) -> List[np.ndarray]:
  """Divides layers [N] into consecutive pieces with equal shares of the devices' memory.

  Returns:
    The placement [N], if it fits and one device could not hold all ops; else none.
  """
  devices, costs = candidates.compute_devices(problem), problem.costs
  memory = problem.cluster.memory_bytes[devices]
  most = sum(each.sum() for each in (
      costs.persistent_bytes, costs.output_bytes, costs.temporary_bytes))
  if most <= memory.min():  # even if nothing was ever freed
    return []
  alone = candidates.on_one_device(problem)
  held = np.bincount(layer, candidates.bytes_at_peaks(problem, alone)[1])
  shares = memory * (held.sum() > memory.min())
  for _ in range(_CORRECTIONS if shares.any() else 0):
    piece = np.array(devices, np.int32)[balanced_pieces(held, shares)]
    found = candidates.allowed_or_nearest(problem, piece[layer])
    used = problem.simulator.simulate(found).peak_memory_bytes[devices] / memory
    if used.max() <= 1:
      return [found]
    # A device whose peak takes more of its memory than the others' gets fewer layers.
    shares = shares / np.maximum(used, 1e-3)
  return []


def _branches(
    problem: PlacementProblem, layer: np.ndarray, weight: np.ndarray, devices: List[int]
) -> np.ndarray:
  """Assigns branches to pieces side by side, [L]; see the module."""
  count = len(weight)
  sources, targets = (layer[ops] for ops in forward_edges(problem.graph))
  # Edges inside a layer or against the order of layers tell nothing about branches.
  ahead = sources < targets
  sources, targets = sources[ahead], targets[ahead]
  # [L] number of edges that skip each layer.
  passing = np.cumsum(
      np.bincount(sources + 1, minlength=count + 1)[:count]
      - np.bincount(targets, minlength=count)[:count])
  # All data passes through a layer that no edge skips.
  stem = passing == 0
  inside = ~stem[sources] & ~stem[targets]
  # [L] connected parts of the layers between two such layers are branches.
  _, branch = csgraph.connected_components(sparse.coo_matrix(
      (np.ones(inside.sum()), (sources[inside], targets[inside])), (count, count)), directed=False)
  piece = np.zeros(count, dtype=np.int64)
  speeds = candidates.device_speeds(problem, devices)
  # [stretches, D] compute time so far, per stretch between two stem layers.
  loads = np.zeros((int(stem.sum()) + 1, len(devices)))
  place = np.cumsum(stem)  # [L] number of stem layers up to each layer
  work = np.bincount(branch, weight)
  # Heaviest first, each on the device that would finish its load first (greedy).
  for one in np.argsort(-work, kind="stable").tolist():
    layers = np.flatnonzero((branch == one) & ~stem)
    if len(layers):
      load = loads[place[layers[0]]]
      chosen = int(np.argmin((load + work[one]) / speeds))
      load[chosen] += work[one]
      piece[layers] = chosen
  return piece


def _weights_us(problem: PlacementProblem, layer: np.ndarray, devices: List[int]) -> np.ndarray:
  """Returns the compute time of each layer, [L].

  Ops that can only run on hosts have weight 0: they do not load these devices.

  Args:
    layer: [N] of each op, numbered along the depth.
    devices: indices of the devices that share the layers.
  """
  # A layer's weight is its cost on the fastest kind of device; `balanced_pieces` takes speeds.
  movable = problem.allowed_ops[:, devices].any(axis=1)
  compute_us, cluster = problem.costs.compute_us, problem.cluster
  busy_us = compute_us + cluster.pause_us(compute_us, cluster.first_of_kind)
  return np.bincount(layer, np.where(movable, busy_us.min(axis=1), 0.0))


def balanced_pieces(weight: np.ndarray, shares: np.ndarray) -> np.ndarray:
  """Divides a row of layers into consecutive pieces, piece p in proportion to `shares[p]`.

  The division minimizes the largest ratio of a piece's weight to its share. Bisection finds that
  ratio, and pieces are filled greedily from the first layer on.

  Args:
    weight: [L] weight of each layer.
    shares: [P] positive share of each piece.

  Returns:
    [L] int64, the piece of each layer; pieces may be empty.
  """
  # [L] cumulative weight, each layer's own included.
  ends = np.cumsum(weight)
  # At `high` the piece with the smallest share could hold all layers.
  low, high = 0.0, float(ends[-1] / shares.min())
  # 60 halvings are beyond float64's precision.
  for _ in range(60):
    middle = (low + high) / 2
    if _fill(ends, shares * middle)[-1] >= len(weight):
      high = middle
    else:
      low = middle
  # A little more capacity, so that rounding leaves no layer over.
  boundaries = _fill(ends, shares * (high * (1 + 1e-12)))[:-1]  # first layers of pieces 1, 2, ...
  return np.searchsorted(boundaries, np.arange(len(weight)), side="right")


def _fill(ends: np.ndarray, capacity: np.ndarray) -> np.ndarray:
  """Returns the end of each piece, [P], if each piece takes as many layers as it can hold."""
  boundaries, done = [], 0.0
  first = 0
  for limit in capacity:
    # The first layer that does not fit any more, and the weight before that layer.
    first = int(np.searchsorted(ends, done + limit, side="right"))
    done = float(ends[first - 1]) if first else 0.0
    boundaries.append(first)
  return np.array(boundaries)


METHODS = (
    Method("expert", Kind.BASELINE, unseeded(place_by_hand), rank=2, start_rank=1,
           title="expert (splits by hand)"),
)
