import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from properties import examples

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import METHODS, group_ops


@st.composite
def _cases(draw):
  """A random graph with colocation, hosts and costs, and how many groups to make of it."""
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  n, d = draw(st.integers(1, 40)), draw(st.integers(1, 4))
  edges = [(u, 0, v) for v in range(1, n) for u in range(v) if rng.random() < 2 / n]
  sets = rng.integers(0, n, n)
  first = np.array([int(np.flatnonzero(sets == s)[0]) for s in sets])
  colocation = np.where(rng.random(n) < 0.3, first, np.arange(n))
  colocation = np.where(colocation[colocation] == colocation, colocation, np.arange(n))
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Op"] * n, [1] * n, edges,
      colocation=colocation.astype(np.int32))
  allowed = np.ones((n, d), dtype=bool)
  if d > 1:
    allowed[:, -1] = False
    allowed[rng.random(n) < 0.2] = np.arange(d) == d - 1
  allowed = allowed[colocation]
  costs = OpCosts(
      rng.exponential(100, (n, 1)) * (rng.random((n, 1)) < 0.6), rng.exponential(1e5, n),
      np.zeros(n), np.zeros(n))
  return graph, costs, allowed, draw(st.integers(1, 12))


@pytest.mark.parametrize("method", sorted(METHODS))
@hypothesis.given(case=_cases())
@examples(60)
def test_every_method_keeps_what_a_grouping_promises(method, case):
  graph, costs, allowed, max_groups = case
  grouping = group_ops(graph, costs, allowed, max_groups=max_groups, method=method)
  group = grouping.group_of_op
  assert (group == group[graph.colocation]).all()
  for g in range(grouping.num_groups):
    assert allowed[group == g].all(axis=0).any()
  if method not in ("none",):
    assert grouping.num_groups <= max(max_groups, len(np.unique(allowed, axis=0)))
  rank = np.empty(graph.num_ops, dtype=int)
  rank[graph.topological_order] = np.arange(graph.num_ops)
  firsts = [rank[group == g].min() for g in range(grouping.num_groups)]
  assert firsts == sorted(firsts)
  again = group_ops(graph, costs, allowed, max_groups=max_groups, method=method)
  assert (again.group_of_op == group).all()


@pytest.mark.parametrize("options, words", [
    ({"method": "best"}, "heavy_edge"), ({"max_groups": 0}, "max_groups is 0")])
def test_what_cannot_be_grouped_is_refused(options, words):
  graph = ComputationGraph.from_edges(["a", "b"], ["Op"] * 2, [1] * 2, [(0, 0, 1)])
  costs = OpCosts(np.ones((2, 1)), np.ones(2), np.zeros(2), np.zeros(2))
  with pytest.raises(PlacementError, match=words):
    group_ops(graph, costs, np.ones((2, 1), bool), **options)
