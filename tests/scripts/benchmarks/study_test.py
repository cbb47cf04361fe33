"""study.py: measured against predicted, on two real workers that were calibrated before."""

import dataclasses
import json

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import load_graph
from placeto_tf.runtime.calibrating import write_costs
from worker_cluster import WORKER_CLUSTER

SPEC = "zoo:enas_recurrent:cell=0:batch=2:steps=2:nodes=2:hidden=4:vocab=9"


def test_a_study_measures_what_was_predicted_and_goes_on_to_its_table(run_program, tmp_path):
  out, study = tmp_path / "out", tmp_path / "study.json"
  study.write_text(json.dumps({
      "graphs": [SPEC], "placements": 6, "near_best": 1, "repeats": 1, "max_runs": 8,
      "max_seconds": 0.2, "search_seconds": 0.1}))
  directory = out / SPEC.replace(":", "_")
  (directory / "calibration").mkdir(parents=True)
  graph = load_graph(SPEC)
  cluster = dataclasses.replace(Cluster.from_json(WORKER_CLUSTER), core_probe_us=1000.0)
  cluster.save(str(directory / "calibration" / "cluster.json"))
  compute_us = np.full((graph.num_ops, 2), 20.0)
  write_costs(graph, cluster, compute_us, str(directory / "calibration" / "costs.pb"))
  done = run_program("study", f"--study={study}", f"--out={out}")
  assert done.code == 0, done.err
  text = (directory / "measured.json").read_text()
  predicted = json.loads((directory / "predicted.json").read_text())
  measured = json.loads(text)
  assert {row["placement"] for row in measured} == set(predicted) and len(predicted) == 7
  assert all(row["measured_us"] > 0 for row in measured)
  assert run_program("study", f"--study={study}", f"--out={out}").code == 0
  assert (directory / "measured.json").read_text() == text  # none again
  summary = run_program("study", f"--study={study}", f"--out={out}", "--summary")
  assert summary.code == 0 and SPEC in summary.out
