"""Training graphs of models that others wrote: the one that needs no package besides Keras."""

import numpy as np
import pytest

from placeto_tf.costs.estimate import work_of
from placeto_tf.graphs import load_graph

pytest.importorskip("keras")


def test_a_training_step_is_written_that_loads_with_its_shapes_loops_and_updates(
    run_program, tmp_path):
  done = run_program(
      "foreign_graphs", f"--out={tmp_path}",
      "--models=bidirectional_lstm:batch=2:words=3:units=4:layers=1:vocabulary=5")
  assert done.code == 0, done.err
  graph = load_graph(str(tmp_path / "bidirectional_lstm.meta"))
  assert f"{graph.num_ops:,} ops" in done.out
  assert graph.fetches == ("train_op",)
  assert sorted(graph.source.feed_shapes.values()) == [(2, 3), (2, 3)]
  # Both directions, forward and backward, go round once a word.
  work = work_of(graph, cache=False)
  assert np.unique(work.executions).tolist() == [1, 3, 4]  # 4 for the conditions
  assert sum("runs 3 times" in note for note in work.notes) == 4
  # The embedding, three tensors of each direction, and two of the last layer, with Adam's slots.
  variables = [i for i, kind in enumerate(graph.op_types) if kind == "VarHandleOp"]
  assert len(variables) >= 3 * (1 + 2 * 3 + 2)
