"""Tests for placeto_tf.costs.grappler."""

import pytest

from placeto_tf import graphs
from placeto_tf.costs.grappler import Question
from placeto_tf.errors import CostError


def _product(load, size):
  def build(v1, tf):
    a = tf.raw_ops.FakeParam(dtype=tf.float32, shape=[size, size])
    tf.matmul(a, a, name="fetch")

  return graphs.analysis_graph_def(load(build))


def test_counts_are_exact_to_the_flop_and_the_byte(load):
  found = Question(_product(load, 3), ["fetch"]).estimates()["fetch"]
  assert (found.flops, found.moved_bytes) == (2 * 27, 4 * 3 * 9)


def test_counts_that_would_overflow_are_taken_at_a_coarser_scale(load):
  # 1.6e16 flops; one is 1,000 ns at the finest scale, and int64 ends at 9.2e18 ns.
  found = Question(_product(load, 200_000), ["fetch"]).estimates()["fetch"]
  assert found.flops == pytest.approx(2.0 * 200_000**3, rel=1e-6)


def test_counts_that_overflow_at_every_scale_are_an_error(load):
  with pytest.raises(CostError, match="overflow"):
    Question(_product(load, 2_000_000), ["fetch"]).estimates()
