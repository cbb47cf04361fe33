import pytest

import graph_files
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph


def test_an_unknown_suffix_asks_for_the_format(tmp_path, chain):
  path = graph_files.write(chain(3), tmp_path / "graph.bin")
  with pytest.raises(GraphError, match="pass format .--format.: one of graph_def"):
    load_graph(path)
  assert load_graph(path, format="graph_def").num_ops == 3
  with pytest.raises(GraphError, match="unknown format 'onnx'"):
    load_graph(path, format="onnx")


def contents(training_graph, cost_graph):
  return {
      "graph_def": training_graph.meta_graph.graph_def, "meta_graph_def": training_graph.meta_graph,
      "cost_graph_def": cost_graph}


@pytest.mark.parametrize("written", ["graph_def", "meta_graph_def", "cost_graph_def"])
@pytest.mark.parametrize("read", ["graph_def", "meta_graph_def", "cost_graph_def"])
@pytest.mark.parametrize("text", [False, True])
def test_a_file_of_another_format_is_recognised(
    training_graph, cost_graph, tmp_path, written, read, text):
  proto = contents(training_graph, cost_graph)[written]
  path = graph_files.write(proto, tmp_path / ("graph.txt" if text else "graph.bin"))
  if written == read:
    assert load_graph(path, format=read, batch_size=2).source.format == read
  else:
    with pytest.raises(GraphError, match=f"--format={written}"):
      load_graph(path, format=read, batch_size=2)
