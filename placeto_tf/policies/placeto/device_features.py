"""What putting a group on each device would mean: features of (current group, device) pairs.

Not in the paper, whose head sees devices only through the embedding and has to learn each device
for itself; these are scored by one function for all devices.

Legend: G groups, D devices, B placements side by side, K groups placed now, P features.
"""

from __future__ import annotations

from typing import Dict

import numpy as np
import tensorflow as tf

from placeto_tf.encoding.grouped_graph import GroupedGraph

NUM_FEATURES = 11
INTO, OUT_OF = "into", "out_of"  # [G, G] transfer times: from each group, to each group
PARENTS, CHILDREN = "parents", "children"  # [G, G] 1 where there is an edge
COMPUTE, MEMORY = "compute", "memory"  # [G, D]
PAIR_TABLES = (INTO, OUT_OF, PARENTS, CHILDREN)
# How far apart in time, as a share of the step, two groups may start and still count as rivals.
_WINDOWS = (0.03, 0.15)


def tables(grouped: GroupedGraph, scale_us: float) -> Dict[str, np.ndarray]:
  """What `device_features` needs of a graph; times over `scale_us`."""
  g, d = grouped.num_groups, grouped.num_devices
  off_diagonal = ~np.eye(d, dtype=bool)
  bandwidth = grouped.bandwidth_bytes_per_us[off_diagonal] if d > 1 else np.ones(1)
  transfer = np.zeros((g, g), dtype=np.float32)
  transfer[grouped.sources, grouped.targets] = (
      grouped.edge_bytes / float(np.median(bandwidth)) / scale_us)
  linked = np.zeros((g, g), dtype=np.float32)
  linked[grouped.sources, grouped.targets] = 1
  return {
      INTO: transfer.T,
      OUT_OF: transfer,
      PARENTS: linked.T,
      CHILDREN: linked,
      COMPUTE: grouped.compute_us / scale_us,
      MEMORY: (grouped.persistent_bytes + grouped.working_bytes)[:, None] / grouped.memory_bytes,
  }


def device_features(
    of_graph: Dict[str, tf.Tensor], placement: tf.Tensor, start: tf.Tensor, finish: tf.Tensor,
    current: tf.Tensor) -> tf.Tensor:
  """[B, K, D, P] from `tables`, placement, start, finish [B, G] and current [B, K].

  Times are squashed by log(1 + 100 x).
  """
  on = tf.one_hot(placement, of_graph[COMPUTE].shape[1])  # [B, G, D]
  mine = tf.gather(on, current, batch_dims=1)  # [B, K, D]
  compute = tf.gather(of_graph[COMPUTE], current)  # [B, K, D]
  start_here = tf.gather(start, current, batch_dims=1)[..., None]  # [B, K, 1]
  finish_here = tf.gather(finish, current, batch_dims=1)[..., None]
  busy = on * of_graph[COMPUTE]  # [B, G, D]
  load = tf.reduce_sum(busy, axis=1)[:, None] - mine * compute  # [B, K, D], without the group
  memory = tf.reduce_sum(on * of_graph[MEMORY], axis=1)[:, None] * tf.ones_like(mine)
  parents, children = tf.gather(of_graph[PARENTS], current), tf.gather(of_graph[CHILDREN], current)
  others = 1.0 - tf.one_hot(current, tf.shape(on)[1])  # [B, K, G]
  middle, middle_here = (start + finish)[:, None] / 2, (start_here + finish_here) / 2
  distance = tf.abs(middle - middle_here)  # [B, K, G]
  rivals = [
      tf.matmul(others * tf.maximum(0.0, 1.0 - distance / window), busy)
      for window in _WINDOWS]
  # When the last parent on each device starts, and the first child: how long since, how soon.
  waits = tf.maximum(0.0, 1.0 - tf.abs(start_here - finish[:, None]) / 0.05)
  needs = tf.maximum(0.0, 1.0 - tf.abs(start[:, None] - finish_here) / 0.05)
  times = tf.stack([
      tf.matmul(tf.gather(of_graph[INTO], current), on),
      tf.matmul(tf.gather(of_graph[OUT_OF], current), on),
      load,
      compute,
      memory,
      *rivals,
  ], axis=-1)
  counts = tf.stack([
      tf.matmul(parents, on) / tf.maximum(1.0, tf.reduce_sum(parents, -1, keepdims=True)),
      tf.matmul(children, on) / tf.maximum(1.0, tf.reduce_sum(children, -1, keepdims=True)),
      tf.matmul(parents * waits, on),
      tf.matmul(children * needs, on),
  ], axis=-1)
  return tf.concat([tf.math.log1p(100.0 * times) / 4.6, counts], axis=-1)
