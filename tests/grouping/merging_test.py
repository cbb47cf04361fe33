import hypothesis
import hypothesis.strategies as st
import numpy as np
from properties import examples

import plain_grouping
from placeto_tf.grouping.contraction import Contraction
from placeto_tf.grouping.heavy_edge import merge_stages
from placeto_tf.grouping.merging import Merger
from placeto_tf.grouping.node_sets import NONE


def _contraction(weights, edges, masks=None):
  """Nodes with weights, edges {(u, v): bytes} with u < v, and a mask each (3 by default)."""
  masks = masks or [3] * len(weights)
  known = tuple(sorted(set(masks)))
  pairs = sorted(edges)
  return Contraction(
      node_of_op=np.arange(len(weights), dtype=np.int32), weight_us=np.array(weights, float),
      pattern=np.array([known.index(mask) for mask in masks], dtype=np.int32), masks=known,
      producers=np.array([u for u, _ in pairs], dtype=np.int32),
      consumers=np.array([v for _, v in pairs], dtype=np.int32),
      traffic_bytes=np.array([edges[pair] for pair in pairs], dtype=float),
      rank=np.arange(len(weights)))


def _neighbours(merger, root):
  """Root of every set that a set exchanges data with -> bytes, both directions."""
  sets, found = merger.sets, {}
  half = sets.head[root]
  while half != NONE:
    found[int(sets.to[half])] = float(sets.traffic[half >> 1])
    half = sets.after[half]
  return found


def _sets(merger):
  labels = merger.labels()
  return sorted(sorted(np.flatnonzero(labels == root).tolist()) for root in set(labels.tolist()))


def test_traffic_that_grew_by_a_merge_counts_in_full():
  # After 0+1 the pair to 2 has 4 + 4 bytes, more than the 7 between 2 and 3.
  merger = Merger(_contraction([1] * 4, {(0, 1): 9, (0, 2): 4, (1, 2): 4, (2, 3): 7}))
  merger.merge_heaviest_edges(2, cap_us=10)
  assert _sets(merger) == [[0, 1, 2], [3]]


def test_merge_down_raises_the_cap_when_stuck():
  merger = Merger(_contraction([6, 6, 6], {(0, 1): 9, (1, 2): 1}))
  merger.merge_down(2, cap_us=7)
  assert _sets(merger) == [[0, 1], [2]]


def test_sets_with_different_devices_merge_last_and_only_where_they_share_one():
  merger = Merger(_contraction([1] * 3, {(0, 1): 9, (1, 2): 9}, masks=[0b011, 0b110, 0b1000]))
  merger.merge_down(1, cap_us=10)
  assert _sets(merger) == [[0, 1], [2]]
  assert merger.mask(merger.labels()[0]) == 0b010


@st.composite
def _contractions(draw):
  """Up to 60 nodes; few distinct weights and bytes, so that ties are common."""
  m = draw(st.integers(1, 60))
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  few = draw(st.booleans())
  weights = rng.integers(0, 4, m) if few else rng.exponential(10, m)
  pairs = rng.integers(0, m, (draw(st.integers(0, 4 * m)), 2))
  pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0).reshape(-1, 2)
  masks = tuple(range(1, draw(st.sampled_from((2, 4, 8)))))
  traffic = rng.integers(0, 3, len(pairs)) if few else rng.exponential(1e6, len(pairs))
  return Contraction(
      node_of_op=np.arange(m, dtype=np.int32), weight_us=weights.astype(float),
      pattern=rng.integers(0, len(masks), m).astype(np.int32), masks=masks,
      producers=pairs[:, 0].astype(np.int32), consumers=pairs[:, 1].astype(np.int32),
      traffic_bytes=traffic.astype(float), rank=rng.permutation(m))


@hypothesis.given(contraction=_contractions(), count=st.integers(1, 30))
@examples(200)
def test_compiled_stages_merge_what_plain_ones_do(contraction, count):
  plain = plain_grouping.PlainMerger(contraction)
  expected = plain_grouping.merge_stages(plain, contraction, count)
  merger = Merger(contraction)
  assert merge_stages(merger, contraction, count).tolist() == expected.tolist()
  roots = plain.roots()
  assert merger.roots().tolist() == roots and merger.num_sets == plain.num_sets
  assert [merger.sets.weight_us[u] for u in roots] == [plain.weight_us[u] for u in roots]
  assert [merger.mask(u) for u in roots] == [plain.mask[u] for u in roots]
  assert [_neighbours(merger, u) for u in roots] == [plain.neighbours[u] for u in roots]


@hypothesis.given(contraction=_contractions(), count=st.integers(1, 30))
@examples(60)
def test_nodes_on_different_devices_have_devices_of_their_own(contraction, count):
  node_devices = np.random.default_rng(count).integers(0, 3, contraction.num_nodes)
  masks = plain_grouping.node_masks(contraction)
  masks = [mask << 3 * int(d) for mask, d in zip(masks, node_devices)]
  plain = plain_grouping.PlainMerger(contraction)
  plain.mask = masks
  expected = plain_grouping.merge_stages(plain, contraction, count)
  start = Merger(contraction)
  for _ in range(2):  # what is merged leaves the start as it was
    found = merge_stages(start.placed(node_devices, 3), contraction, count)
    assert found.tolist() == expected.tolist()
