"""Stages of a pipeline: the device of each layer of a micro-batch.

A layer, by `layer_positions`, is a variable and all ops near it, forward, backward and
update, so that a stage has the forward and the backward ops of its layers. Layers are first divided
along the depth into stages of equal work; then stage boundaries and single layers move as long as
the estimated step gets shorter. So an embedding and a head that share a table come together, and
boundaries go where few bytes are sent.

The estimate: the busiest device or bus works on M micro-batches, one after the other; before and
after that the first and the last micro-batch run alone:

  (M - 1) * max(work of a device, time of its bus) + work of all + all transfers + work done once

A boundary between stages that exchange only one tensor forward and one back makes a micro-batch
wait twice. Each wait is assumed to be a quarter of a device's mean work on one micro-batch. More
tensors mean more such waits. The exact step time of a pipeline comes from `Simulator`.

Dimensions: N0 ops of one micro-batch, L layers, D devices, T tensors that more than one layer uses.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.problem.placement_problem import MEMORY_PENALTY_US_PER_BYTE
from placeto_tf.search.expert import balanced_pieces
from placeto_tf.search.layers import layer_positions

_PASSES = 20
_FURTHEST = 24  # the most layers by which a stage boundary moves at once


class Stages:
  """The layers of one micro-batch, and the search for their devices.

  Attributes:
    layer: [N0] int64, the layer of each op.
    held_bytes: [L] bytes of each layer's variables, gradient sums and one gradient to be added.
  """

  def __init__(
      self, graph: ComputationGraph, costs: OpCosts, cluster: Cluster, devices: Sequence[int],
      repeated: np.ndarray, micro_batches: int):
    """Sums the work, memory and tensors of each layer.

    Args:
      graph, costs: of one micro-batch.
      cluster: the devices.
      devices: indices of the devices that get layers.
      repeated: [N0] bool, whether every micro-batch has the op.
      micro_batches: M.
    """
    self._devices, self._micro_batches = list(devices), micro_batches
    found = np.unique(layer_positions(graph), return_inverse=True)[1].reshape(-1)
    self.layer = found
    count = int(found.max()) + 1
    # [N0, D] time of each op, with overhead for ops that launch a kernel.
    us = costs.compute_us[:, cluster.device_kinds[self._devices]]
    us = us + cluster.pause_us(us, np.array(self._devices))  # [N0, D]
    # [L, D] each: work of every micro-batch, and work done once a step.
    self._work_us = _by_layer(found, us * repeated[:, None], count)
    self._once_us = _by_layer(found, us * ~repeated[:, None], count)
    self._memory_bytes = cluster.memory_bytes[self._devices]
    # Memory holds the sum of the gradients so far and one gradient to be added.
    outputs, consumers = graph.edge_outputs, graph.edge_consumers
    kept = (outputs >= 0) & repeated[graph.edge_producers] & ~repeated[consumers]
    # A tensor from a micro-batch into an op that runs once is a gradient, which counts once.
    tensors, first = np.unique(outputs[kept], return_index=True)
    self.held_bytes = np.bincount(found, costs.persistent_bytes, minlength=count) + np.bincount(
        found[graph.edge_producers[kept][first]], 2 * costs.output_bytes[tensors],
        minlength=count)
    self._prepare_tensors(graph, costs, repeated)
    # [D, D], 0 on the diagonal: a tensor that is used on its own device costs nothing.
    self._us_per_byte, self._fixed_us = (
        each[np.ix_(self._devices, self._devices)]
        for each in (cluster.us_per_byte, cluster.fixed_us))

  def _prepare_tensors(
      self, graph: ComputationGraph, costs: OpCosts, repeated: np.ndarray) -> None:
    """Finds (tensor, layer that reads the tensor) pairs [P] across layers, sorted by tensor."""
    outputs, layer = graph.edge_outputs, self.layer
    # Data edges inside a micro-batch whose ends are in different layers.
    sent = (outputs >= 0) & repeated[graph.edge_producers] & repeated[graph.edge_consumers] & (
        layer[graph.edge_producers] != layer[graph.edge_consumers])
    # [P, 2], sorted by tensor, so that runs of pairs begin at `_tensor_begin` [T].
    pairs, first = np.unique(np.stack(
        [outputs[sent], layer[graph.edge_consumers[sent]]], axis=1), axis=0, return_index=True)
    tensors, self._tensor_begin = np.unique(pairs[:, 0], return_index=True)
    self._readers = pairs[:, 1]
    self._makers = layer[graph.edge_producers[sent][first]]  # [P]
    self._bytes = costs.output_bytes[tensors]  # [T]
    self._maker_of_tensor = self._makers[self._tensor_begin]

  def estimate_us(self, stage: np.ndarray, waits: bool = True) -> float:
    """Estimates the step of layers on devices (see the module), with a penalty for memory.

    Args:
      stage: [L] int, position of each layer's device among `devices`.
      waits: whether the time for which micro-batches wait for transfers is included.
    """
    count = len(self._devices)
    layers = np.arange(len(stage))
    # [D] loads: of one micro-batch, and of ops that run once.
    work = np.bincount(stage, self._work_us[layers, stage], minlength=count)
    once = np.bincount(stage, self._once_us[layers, stage], minlength=count)
    busiest_us = sent_us = waits_us = 0.0
    if len(self._bytes):
      makers, readers = stage[self._makers], stage[self._readers]
      # [T] slowest receiver of each tensor; 0 where all readers are on the maker's device.
      rate = np.maximum.reduceat(self._us_per_byte[makers, readers], self._tensor_begin)
      fixed = np.maximum.reduceat(self._fixed_us[makers, readers], self._tensor_begin)
      # [D] time of each sender's bus per micro-batch.
      bus = np.bincount(
          stage[self._maker_of_tensor], self._bytes * rate + fixed * (rate > 0), minlength=count)
      busiest_us, sent_us = bus.max(), bus.sum()
      # Each tensor sent waits for a quarter of the mean work of a device (see the module).
      waits_us = np.count_nonzero(rate) * work.sum() / count / 4
    held = np.bincount(stage, self.held_bytes, minlength=count)
    # Bytes over the memory limits, penalized as in the problem's objective.
    over = np.maximum(held - self._memory_bytes, 0).sum()
    return float(
        (self._micro_batches - 1) * max(work.max(), busiest_us) + work.sum() + sent_us
        + once.max() + waits * waits_us + MEMORY_PENALTY_US_PER_BYTE * over)

  def divide(self) -> np.ndarray:
    """Divides layers into stages of equal work along the depth, [L]."""
    # A device's speed is the inverse of its time for all layers.
    speeds = 1 / np.maximum(self._work_us.sum(axis=0), 1e-9)
    return balanced_pieces(self._work_us.min(axis=1), speeds / speeds.sum())

  def improved(self, stage: np.ndarray) -> np.ndarray:
    """Improves stages [L]: moves boundaries and single layers while the estimate gets shorter."""
    best = self.estimate_us(stage)
    for _ in range(_PASSES):
      before = best
      for moves in (_moved_boundaries, self._moved_layers):
        for moved in moves(stage):
          estimate = self.estimate_us(moved)
          # Shorter by more than rounding errors, so that passes end.
          if estimate < best * (1 - 1e-9):
            stage, best = moved, estimate
      if best == before:
        break
    return stage

  def _moved_layers(self, stage: np.ndarray) -> Iterator[np.ndarray]:
    """Yields variants of the stages with one layer on another device."""
    for layer in range(len(stage)):
      for device in range(len(self._devices)):
        moved = stage.copy()
        moved[layer] = device
        yield moved


def _moved_boundaries(stage: np.ndarray) -> Iterator[np.ndarray]:
  """Yields variants of the stages with one boundary some layers earlier or later."""
  # A boundary is between neighbouring layers on different devices; layers beside it change device.
  for boundary in (np.flatnonzero(np.diff(stage)) + 1).tolist():
    for width in range(1, _FURTHEST + 1):
      for layers, device in (
          (slice(max(0, boundary - width), boundary), stage[boundary]),
          (slice(boundary, boundary + width), stage[boundary - 1])):
        moved = stage.copy()
        moved[layers] = device
        yield moved


def _by_layer(layer: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
  """Sums values of ops, [N0, D], to values of layers, [L, D]."""
  found = np.zeros((count, values.shape[1]))
  np.add.at(found, layer, values)
  return found
