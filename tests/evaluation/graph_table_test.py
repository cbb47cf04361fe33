from placeto_tf import zoo
from placeto_tf.evaluation import graph_table

_SPEC = "rnnlm:batch=2:layers=1:steps=2:hidden=4:vocab=11"


def test_a_row_counts_what_the_graph_has():
  size = graph_table.measure_size(_SPEC, "k80:1")
  # Two tables, the cell's matrix and two biases; momentum doubles what is held.
  parameters = 11 * 4 + 8 * 16 + 16 + 4 * 11 + 11
  assert size.parameters == zoo.build(_SPEC).num_parameters == parameters
  assert 1 <= size.variable_bytes / (2 * 4 * parameters) < 1.2  # and some constants
  assert 0 < size.ops < size.all_ops
  assert size.step_time_us > 0 and size.fits
  assert size.peak_memory_bytes < size.variable_bytes + size.tensor_bytes
  cells = size.to_markdown().count("|")
  assert {line.count("|") for line in graph_table.HEADER.split("\n")} == {cells}


def test_a_graph_that_does_not_fit_says_so():
  size = graph_table.GraphSize(
      spec="x", ops=1, all_ops=1, parameters=1, variable_bytes=1, tensor_bytes=1, step_time_us=1,
      peak_memory_bytes=13 * 2**30, fits=False)
  assert "13.0 GB (does not fit)" in size.to_markdown()
