"""The benchmark of one pass of GDP: it runs, and says what it measured."""

import json

GRAPH = "zoo:rnnlm:layers=1:steps=2:hidden=16:batch=2:vocab=20"


def test_it_places_a_graph_and_measures_a_gradient(run_program):
  done = run_program(
      "benchmark_gdp", f"--graph={GRAPH}", "--cluster=k80:2", "--gradient", "--metis")
  assert done.code == 0, done.err
  found = json.loads(done.out.strip().split("\n")[-1])
  assert 0 < found["nodes"] <= found["ops"]
  assert found["gdp_fits"] and found["gdp_ms"] <= found["likeliest_ms"]
  assert found["metis_ms"] > 0 and found["gradient_s"] >= 0 and found["gdp_peak_gb"] > 0
