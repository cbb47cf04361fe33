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
