import hypothesis
import hypothesis.strategies as st
import numba
import numpy as np

import plain_grouping
from placeto_tf.grouping.node_sets import MAX_SLOTS, NONE, NodeSets, common_us, unite_slots


@numba.njit
def _common_us(sets):
  return common_us(sets, 0, 1)


@numba.njit
def _united(sets):
  return unite_slots(sets, sets.slot_head[0], sets.slot_head[1])


def _sets(rows):
  """A set for each row of slots."""
  slots = [slot for row in rows for slot in row]
  sets = NodeSets.of(np.ones(len(rows)), np.zeros(len(rows)), np.zeros(0, np.int32),
                     np.zeros(0, np.int32), np.zeros(0))
  after = np.arange(1, len(slots) + 1, dtype=np.int32)
  ends = np.cumsum([len(row) for row in rows])
  for u, row in enumerate(rows):
    if row:
      sets.slot_head[u] = ends[u] - len(row)
      after[ends[u] - 1] = NONE
  return sets._replace(slot_after=after, slot_us=np.array(slots, dtype=float).reshape(-1, 2))


def _row(sets, slot):
  row = []
  while slot != NONE:
    row.append(tuple(sets.slot_us[slot].tolist()))
    slot = sets.slot_after[slot]
  return row


def test_intervals_join_and_overlap():
  sets = _sets([[(0, 2), (5, 6)], [(2, 3), (8, 9)]])
  assert _row(sets, _united(sets)) == [(0, 3), (5, 6), (8, 9)]
  sets = _sets([[(0, 3), (5, 8)], [(2, 6), (7, 9)]])
  assert _common_us(sets) == 1 + 1 + 1


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(0, MAX_SLOTS), st.integers(0, MAX_SLOTS))
@hypothesis.settings(deadline=None, derandomize=True, max_examples=200)
def test_intervals_agree_with_plain_lists(seed, first, second):
  rng = np.random.default_rng(seed)

  def row(count):
    ends = np.sort(rng.choice(4 * MAX_SLOTS, 2 * count, replace=False)).astype(float)
    return [tuple(pair) for pair in ends.reshape(-1, 2).tolist()]

  rows = [row(first), row(second)]
  sets = _sets(rows)
  assert _common_us(sets) == plain_grouping.common_us(*rows)
  assert _row(sets, _united(sets)) == plain_grouping.union(*rows)
