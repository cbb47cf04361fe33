import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from placeto_tf.encoding import graph_tensor, records
from random_problem import grouped_graph, random_problem


def test_what_is_read_is_what_was_written(tmp_path):
  graphs = []
  for seed, num_groups in ((0, 12), (1, 5)):
    problem = random_problem(num_groups=num_groups, seed=seed)
    graphs.append(graph_tensor.encode(
        grouped_graph(problem), np.arange(num_groups) % 3, step_time_us=seed + 1.5,
        start_us=np.arange(num_groups), current=[1]))
  path = str(tmp_path / "placements.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    for graph in graphs:
      writer.write(tfgnn.write_example(graph).SerializeToString())
  read = list(records.read_records(path))
  assert len(read) == 2
  for expected, found in zip(graphs, read):
    flat, flat_found = (
        tf.nest.flatten(graph, expand_composites=True) for graph in (expected, found))
    for a, b in zip(flat, flat_found):
      np.testing.assert_array_equal(a.numpy(), b.numpy())
