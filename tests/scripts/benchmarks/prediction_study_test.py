"""The study's placements, and that it goes on where it stopped."""

import json

import numpy as np
import prediction_study as study

from placeto_tf.costs import estimate_costs


def test_placements_are_of_all_kinds_and_the_same_for_the_same_seed(graph, cluster):
  config = study.StudyConfig(("g",), placements=24, near_best=10, search_seconds=0.3)
  costs = estimate_costs(graph, cluster, cache=False)
  chosen = study.choose_placements(config, graph, cluster, costs)
  kinds = [kind for kind, _ in chosen]
  assert len(chosen) == 25  # with the single device
  assert kinds[:4] == ["single", "expert", "metis", "best"] and kinds.count("near") == 9
  assert {"random_op", "random_group", "random_block"} <= set(kinds)
  for _, indices in chosen:
    np.testing.assert_array_equal(indices, indices[graph.colocation])
  best = chosen[3][1]
  for kind, indices in chosen:
    assert kind != "near" or (indices != best).mean() < 0.6


def test_a_line_that_a_kill_cut_off_hides_none_of_the_later_ones(tmp_path):
  path = str(tmp_path / "measured.jsonl")
  rows = [{"placement": f"{i:02d}_op.json", "measured_us": 1.0 + i, "failure": None}
          for i in range(4)]
  study._append(path, rows[0])
  study._append(path, rows[1])
  for left in range(len(json.dumps(rows[1]))):  # wherever the kill came
    with open(path, "w", encoding="utf-8") as file:
      file.write(json.dumps(rows[0]) + "\n" + json.dumps(rows[1])[:left])
    study._append(path, rows[2])
    study._append(path, rows[3])
    assert study._rows(path) == [rows[0], rows[2], rows[3]]
