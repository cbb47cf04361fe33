import json

import pandas as pd

from placeto_tf import zoo
from placeto_tf.evaluation import graph_table, tables


def row(graph, method, step_time_us, seed=0, start_us=None, fits=True, budget=100):
  return {
      "graph": graph, "cluster": "k80:2", "method": method, "seed": seed, "budget": budget,
      "step_time_us": step_time_us, "fits": fits, "start_us": start_us, "evaluations": 10,
      "seconds": 1.0, "lower_bound_us": 500.0, "peak_memory_bytes": 1.0,
      "placement": f"placements/{graph}-{method}-{seed}-{budget}.json"}


def table(*rows):
  return pd.DataFrame(list(rows)).astype({"budget": "Int64", "start_us": "float64"})


def test_the_table_compares_every_method_with_the_best_of_its_line():
  text = tables.step_time_table(table(
      row("a", "single", 2000.0), row("a", "metis", 1000.0),
      row("b", "single", 1000.0), row("b", "metis", 8000.0)))
  lines = text.splitlines()
  assert lines[2] == "| a | k80:2 | 2.0 | 1.0 | 0.5 |"
  # single: 2 and 1 times the best, metis: 1 and 8 times
  assert lines[-1] == "| geometric mean over the best |  | 1.414 | 2.828 |  |"


def test_seeds_stand_as_mean_and_deviation_and_policies_with_their_gain():
  text = tables.step_time_table(table(
      row("a", "placeto", 900.0, seed=0, start_us=1000.0),
      row("a", "placeto", 700.0, seed=1, start_us=1000.0)))
  assert "0.8 ± 0.1 (-20.0 %)" in text


def test_budget_tables_have_what_each_method_reaches_with_each_budget(tmp_path):
  rows = [row("a", "single", 2000.0), row("a", "metis", 1600.0)]
  found = [[[1, 0.1, 2000.0]], [[24, 0.1, 1600.0]]]
  for budget, reached in {100: (800.0, 1000.0), 30: (1200.0, 1600.0)}.items():
    for seed, us in enumerate(reached):
      rows.append(row("a", "annealing", us, seed=seed, start_us=1600.0, budget=budget))
      found.append([[1, 0.1, 1600.0], [20, 0.2, us]])
  write_histories(tmp_path, rows, found)
  lines = tables.budget_tables(table(*rows), str(tmp_path)).splitlines()
  # 1200 and 1600, then 800 and 1000, over 1600; METIS, one placement, is the start at any budget.
  assert "| method | 30 evaluations | 100 evaluations |" in lines
  assert "| metis | 1.000 | 1.000 |" in lines
  assert "| annealing | 0.875 ± 0.177 | 0.562 ± 0.088 |" in lines
  assert "| annealing | 0.875 ± 0.177 (50 %) | 0.562 ± 0.088 (100 %) |" in lines


def write_histories(directory, rows, histories):
  (directory / "histories").mkdir()
  for each, history in zip(rows, histories):
    (directory / "histories" / each["placement"].split("/")[-1]).write_text(json.dumps(history))


def test_the_reach_table_counts_evaluations_until_another_methods_best(tmp_path):
  rows = [row("a", "rnn", 1000.0), row("a", "fast", 900.0), row("b", "rnn", 1000.0),
          row("b", "fast", 1020.0)]
  write_histories(tmp_path, rows, (
      [[1, 0.1, 2000.0], [80, 2.0, 1009.0], [90, 3.0, 1000.0]],
      [[1, 0.1, 1500.0], [20, 1.0, 1010.0], [50, 2.0, 900.0]],
      [[1, 0.1, 2000.0], [40, 4.0, 1000.0]], [[2, 0.1, 1020.0]]))
  lines = tables.reach_table(table(*rows), str(tmp_path), "rnn").splitlines()
  assert "| a | k80:2 | rnn | 80 | 2.0 | 80 | 2.0 | 1.00 |" in lines
  assert "| a | k80:2 | fast | 50 | 2.0 | 20 | 1.0 | 4.00 |" in lines
  assert "| b | k80:2 | fast | 2 | 0.1 | never | - | - |" in lines
  assert "| geometric mean |  | fast | 10 | 0.4 | in 50 % of runs | - | - |" in lines


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
  assert row["memory at its peak"] == "0.0 GiB"
