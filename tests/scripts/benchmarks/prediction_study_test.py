"""The study's placements, and that it goes on where it stopped."""

import json

import numpy as np
import prediction_study as study
import pytest

from placeto_tf.costs import estimate_costs
from placeto_tf.errors import MeasurementError, PlacetoError
from placeto_tf.files import outputs
from placeto_tf.runtime.core_speed import CoreSpeed


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
  rows = [{"placement": f"{i:02d}_op.json", "measured_us": 1.0 + i, "steady": True, "failure": None}
          for i in range(4)]
  study._append(path, rows[0])
  study._append(path, rows[1])
  for left in range(len(json.dumps(rows[1]))):  # wherever the kill came
    with open(path, "w", encoding="utf-8") as file:
      file.write(json.dumps(rows[0]) + "\n" + json.dumps(rows[1])[:left])
    study._append(path, rows[2])
    study._append(path, rows[3])
    assert study._rows(path) == [rows[0], rows[2], rows[3]]


@pytest.mark.parametrize("line", [
    "[1]", "7", '{"placement": 7, "measured_us": 1, "steady": true}',
    '{"placement": "a", "measured_us": "x", "steady": true}',
    '{"placement": "a", "measured_us": -1, "steady": true}', "\0" * 100])
def test_lines_that_say_something_else_are_left_out(tmp_path, line):
  path = tmp_path / "measured.jsonl"
  row = {"placement": "00_op.json", "measured_us": 1.0, "steady": True, "failure": None}
  path.write_text(f"{line}\n{json.dumps(row)}\n")
  assert study._rows(str(path)) == [row]


@pytest.mark.parametrize("content", ["", "[]", '{"a.json": "x"}', '{"a.json": -1}', "{" * 10**5])
def test_a_damaged_file_of_the_study_is_named(tmp_path, content):
  (tmp_path / "predicted.json").write_text(content)
  with pytest.raises(MeasurementError, match="predicted.json.*delete it"):
    study.predicted_us(str(tmp_path))


def test_a_study_that_is_not_one_is_refused(tmp_path):
  path = tmp_path / "study.json"
  for text in ("{", "{}", '{"graphs": [], "unknown": 1}', '{"graphs": "zoo:rnnlm"}',
               '{"graphs": ["zoo:rnnlm"], "workers": "2"}', '{"graphs": [7]}',
               '{"graphs": ["zoo:rnnlm"], "search_seconds": 0}',
               '{"graphs": ["zoo:rnnlm"], "max_seconds": 0.0}'):
    path.write_text(text)
    with pytest.raises(
        MeasurementError, match="the study .*graphs|(workers|seconds) of the study is"):
      study.StudyConfig.load(str(path))


def test_measurements_go_on_where_they_stopped(graph, cluster, halves, single, tmp_path):
  from placeto_tf.runtime.workers import InProcess
  from placeto_tf.simulation import Simulator

  class Workers(InProcess):
    """This process under the names of two workers."""

    def start(self):
      super().start()
      self.devices = ("/device:CPU:0", "/device:CPU:1")

  paths = []
  import dataclasses

  from placeto_tf.placements import Placement

  renamed = dataclasses.replace(cluster, devices=tuple(
      dataclasses.replace(device, name=f"/CPU:{i}") for i, device in enumerate(cluster.devices)))
  for name, placement in (("00_single", single), ("01_halves", halves)):
    paths.append(str(tmp_path / f"{name}.json"))
    Placement.from_indices(graph, renamed, placement.indices(graph, cluster)).save(paths[-1])
  simulator = Simulator(graph, estimate_costs(graph, renamed, cache=False), renamed)
  study._predict(graph, renamed, simulator, str(tmp_path), paths)
  config = study.StudyConfig(("g",), repeats=1, max_runs=8, max_seconds=0.5)
  said = []
  with Workers(2) as workers:
    for _ in range(2):
      study._measure(
          config, graph, renamed, workers, CoreSpeed(()), str(tmp_path), paths, said.append)
  assert len(said) == 3  # two placements and a repeat, none of them again
  rows = study._rows(str(tmp_path / "measured.jsonl"))
  assert {row["placement"] for row in rows} == {"00_single.json", "01_halves.json"}
  assert all(row["measured_us"] > 0 for row in rows)
  assert min(study.predicted_us(str(tmp_path)).values()) > 0


def test_a_second_study_in_the_directory_says_so(tmp_path, monkeypatch):
  monkeypatch.setattr(outputs, "_RELEASE_S", 0)
  with outputs.alone(str(tmp_path)):
    with pytest.raises(PlacetoError, match="another run works in"):
      study.run_study(study.StudyConfig(("zoo:none",)), str(tmp_path))
