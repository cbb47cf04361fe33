"""METIS draws from the C library's rand(), which other threads of the process may call."""

import sys

import numpy as np
import pymetis
import pytest

from placeto_tf.grouping.contraction import contract
from placeto_tf.grouping.metis_graph import MetisGraph
from random_problem import random_problem

SHARES = np.full(2, 0.5)


@pytest.fixture(name="graph")
def graph_fixture():
  problem = random_problem(num_ops=40, devices="k80:2")
  contraction = contract(
      problem.graph, problem.costs, problem.allowed_ops, problem.graph.colocation)
  return MetisGraph(contraction, np.ones(contraction.num_nodes, dtype=bool))


def disturb(monkeypatch, numbers):
  """Has partitions of these numbers, from 0, come out differently; returns the list of all made."""
  made, part_graph = [], pymetis.part_graph

  def disturbed(*args, **kwargs):
    cut, found = part_graph(*args, **kwargs)
    made.append(cut)
    if len(made) - 1 in numbers:
      found = [*found[:-1], 1 - found[-1]]
    return cut, found

  monkeypatch.setattr(pymetis, "part_graph", disturbed)
  return made


@pytest.mark.parametrize("numbers, count", [((), 2), ((0,), 3), ((1,), 4), ((0, 2), 5)])
def test_beside_ray_a_partition_is_one_that_came_out_twice(graph, monkeypatch, numbers, count):
  monkeypatch.delitem(sys.modules, "ray", raising=False)
  expected = graph.partition(SHARES, 0.05, False, 7)
  made = disturb(monkeypatch, numbers)
  monkeypatch.setitem(sys.modules, "ray", object())
  np.testing.assert_array_equal(graph.partition(SHARES, 0.05, False, 7), expected)
  assert len(made) == count


def test_tries_end_and_without_ray_there_is_one(graph, monkeypatch):
  made = disturb(monkeypatch, range(1, 100, 2))
  monkeypatch.setitem(sys.modules, "ray", object())
  graph.partition(SHARES, 0.05, False, 7)
  assert len(made) == 6
  monkeypatch.delitem(sys.modules, "ray")
  graph.partition(SHARES, 0.05, False, 7)
  assert len(made) == 7
