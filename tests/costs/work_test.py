"""Tests for placeto_tf.costs.work: flops and bytes against counts made by hand."""

import numpy as np
import pytest

from placeto_tf import graphs
from placeto_tf.costs.work import count_work


class _Counted:
  """Work of a graph, by op name."""

  def __init__(self, graph):
    self.graph, self.work = graph, count_work(graph, graphs.analysis_graph_def(graph))

  def of_type(self, op_type):
    """(flops, bytes) of the only op of a type."""
    assert self.graph.op_types.count(op_type) == 1
    return self.of(self.graph.op_names[self.graph.op_types.index(op_type)])

  def of(self, name):
    """(flops, bytes) of an op."""
    i = self.graph.op_index[name]
    return self.work.flops[i], self.work.moved_bytes[i]

  def outputs(self, name):
    """Bytes of an op's outputs."""
    i = self.graph.op_index[name]
    offsets = self.graph.output_offsets
    return self.work.output_bytes[offsets[i]:offsets[i + 1]].tolist()


def test_matrix_product_counts_two_flops_a_product_and_its_three_matrices(training_graph):
  counted = _Counted(training_graph(batch=16))
  # [16, 8] x [8, 4]
  assert counted.of("MatMul") == (2 * 16 * 8 * 4, 4 * (16 * 8 + 8 * 4 + 16 * 4))
  assert counted.outputs("MatMul") == [4 * 16 * 4]


def test_convolution_counts_filter_times_output(load):
  def build(v1, tf):
    x = v1.placeholder(tf.float32, [2, 10, 10, 3])
    tf.nn.conv2d(x, v1.ones([5, 5, 3, 7]), 1, "SAME", name="fetch")

  assert _Counted(load(build)).of("fetch") == (
      2 * (2 * 10 * 10 * 7) * (5 * 5 * 3), 4 * (2 * 10 * 10 * 3 + 5 * 5 * 3 * 7 + 2 * 10 * 10 * 7))


def test_elementwise_op_counts_one_flop_an_element_below_a_microsecond(training_graph):
  assert _Counted(training_graph(batch=16)).of("Square") == (16 * 4, 4 * 2 * 16 * 4)


def test_dense_update_reads_and_writes_every_variable_and_reads_the_gradient(training_graph):
  counted = _Counted(training_graph())
  variable = 4 * 8 * 4
  _, moved = counted.of_type("ResourceApplyMomentum")
  learning_rate, momentum = 4, 4
  assert moved == 2 * variable + 2 * variable + variable + learning_rate + momentum


def test_sparse_update_moves_the_rows_it_touches_and_a_gather_those_it_reads(load):
  def build(v1, tf):
    table = v1.get_variable("table", [1000, 16], use_resource=True)
    rows = tf.gather(table, v1.placeholder(tf.int32, [5]), name="gather")
    loss = tf.reduce_sum(tf.square(rows))
    v1.train.AdagradOptimizer(0.1).minimize(loss, name="fetch")

  counted = _Counted(load(build))
  row_bytes = 5 * 16 * 4
  assert counted.of_type("ResourceGather")[1] == 2 * row_bytes + 5 * 4
  # two variables read and written, the gradient and its indices read, the learning rate
  assert counted.of_type("ResourceSparseApplyAdagrad")[1] == pytest.approx(
      2 * 2 * row_bytes + row_bytes + 5 * 4, abs=8)
  # sums are zeroed, read and written; rows, their numbers and the number of sums are read
  assert counted.of_type("UnsortedSegmentSum")[1] == 3 * row_bytes + row_bytes + 5 * 4 + 4
  # Per id of 4 bytes: a histogram and 4 passes, which read and write (id, position); a histogram
  # and the one pass of positions below 256; 15 numbers more. A GPU launches 28 kernels.
  assert counted.of_type("Unique")[1] == 5 * 4 * (1 + 4 * 4 + 1 + 4 + 15)
  assert counted.work.launches_on_gpu[counted.graph.op_types.index("Unique")] == 28


def test_variables_and_slots_are_persistent_once_and_so_are_constants(training_graph):
  counted = _Counted(training_graph())
  persistent = counted.work.persistent_bytes
  index = counted.graph.op_index
  assert persistent[index["w"]] == persistent[index["w/Momentum"]] == 4 * 8 * 4
  types = np.array(counted.graph.op_types)
  assert persistent[types == "Const"].max() == 8  # two numbers of four bytes
  assert not persistent[(types != "Const") & (types != "VarHandleOp")].any()


def test_two_handles_of_one_variable_hold_it_once(load):
  def build(v1, tf):
    from tensorflow.python.ops import gen_resource_variable_ops as ops

    tf.add_n([ops.read_variable_op(ops.var_handle_op(
        dtype=tf.float32, shape=[25], shared_name="same", name=name), dtype=tf.float32)
              for name in ("one", "two")], name="fetch")

  counted = _Counted(load(build))
  index = counted.graph.op_index
  assert sorted(counted.work.persistent_bytes[[index["one"], index["two"]]]) == [0, 100]


def test_what_only_passes_on_does_no_work_and_what_launches_does_some(training_graph):
  counted = _Counted(training_graph())
  work, graph = counted.work, counted.graph
  assert work.launches[graph.op_index["MatMul"]] and work.launches_on_gpu[graph.op_index["MatMul"]]
  assert ((work.flops + work.moved_bytes > 0) == work.launches).all()


def test_unknown_dimensions_count_one_and_are_named(load):
  def build(v1, tf):
    x = v1.placeholder(tf.int32, [30])
    tf.raw_ops.ListDiff(x=x, y=x, name="fetch")

  counted = _Counted(load(build))
  assert counted.outputs("fetch") == [4, 4]  # [?] and [?] of int32
  assert counted.work.unknown == "the shapes of 1 op are unknown (the first: fetch)"
