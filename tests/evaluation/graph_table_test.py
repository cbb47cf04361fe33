from placeto_tf import zoo
from placeto_tf.evaluation import graph_table

_SPEC = "rnnlm:batch=2:layers=1:steps=2:hidden=4:vocab=1000"


def test_a_row_counts_what_the_graph_has():
  row = graph_table.describe(_SPEC, "k80:1")
  built = zoo.build(_SPEC)
  assert row["spec"] == f"`{_SPEC}`"
  assert row["trained parameters"] == f"{built.num_parameters / 1e6:.1f} M"
  ops = [int(row[name].replace(",", "")) for name in (
      "ops behind the train op", "ops of the graph")]
  assert 0 < ops[0] < ops[1] == len(built.graph.get_operations())
  assert row["one step on one device"].endswith(" ms")
  assert row["memory at its peak"] == "0.0 GB"
