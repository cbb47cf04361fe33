"""Evaluations resume, refuse to mix budgets, and replay."""

import csv
import dataclasses
import json
import os
import shutil

import pytest

import graph_files
from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation import (
  EvaluationConfig,
  evaluate,
  read_results,
  tables,
  validate,
)
from placeto_tf.graphs import result_directory
from placeto_tf.policies.device_pointer.scorer import ScorerWeights
from placeto_tf.search import PLACERS


@pytest.fixture(name="config")
def config_fixture(tmp_path):
  path = tmp_path / "small.meta"
  path.write_bytes(graph_files.meta_graph_def().SerializeToString())
  return EvaluationConfig(
      graphs=(str(path),), clusters=("k80:2",), methods=("single", "metis"), seeds=(0, 1),
      max_evaluations=30, max_groups=8)


def test_every_method_and_seed_has_its_row_within_the_budget(config, tmp_path):
  rows = evaluate(config, str(tmp_path / "out"))
  assert [(row["method"], row["seed"]) for row in rows] == [
      ("single", 0), ("single", 1), ("metis", 0), ("metis", 1)]
  assert all(1 <= row["evaluations"] <= 30 for row in rows)
  assert all(row["step_time_us"] >= row["lower_bound_us"] > 0 for row in rows)
  assert read_results(str(tmp_path / "out" / "results.csv")) == rows


def test_a_run_that_was_killed_goes_on_where_it_stopped(config, tmp_path):
  out = str(tmp_path / "out")
  rows = evaluate(config, out)
  results = tmp_path / "out" / "results.csv"
  lines = results.read_text().splitlines(keepends=True)
  results.write_text("".join(lines[:3]) + lines[3][:20])  # two rows, and half of the third
  ran = []
  again = evaluate(config, out, progress=lambda done, total, row: ran.append(row["seed"]))
  assert ran == [0, 1]  # metis alone
  assert [row["step_time_us"] for row in again] == [row["step_time_us"] for row in rows]
  ran.clear()
  evaluate(config, out, progress=lambda *_: ran.append(1))
  assert ran == []


@pytest.mark.parametrize("name, says", [
    ("results.csv", "has the columns"),
    ("histories/small_meta__k80_2__single__0.json", "holds something else than a history")])
def test_damaged_results_are_found_before_anything_is_run_or_written(config, tmp_path, name, says):
  out = tmp_path / "out"
  evaluate(config, str(out))
  (path,) = out.glob("histories/*single__0.json") if "/" in name else [out / name]
  path.write_text('{"small": 1}\n')
  (out / "config.json").unlink()
  ran = []
  with pytest.raises(PlacetoError, match=says):
    evaluate(dataclasses.replace(config, seeds=(0, 1, 2)), str(out),
             progress=lambda *row: ran.append(row))
  assert not ran and not (out / "config.json").exists()


def test_every_method_that_does_not_learn_keeps_to_the_budget(config, tmp_path):
  methods = tuple(PLACERS)
  rows = evaluate(
      dataclasses.replace(config, methods=methods, seeds=(0,)), str(tmp_path / "out"))
  assert [row["method"] for row in rows] == list(methods)
  assert all(1 <= row["evaluations"] <= 30 for row in rows)
  for row in rows:  # and the best so far never comes after the budget has ended
    stem = row["placement"].split("/")[-1]
    history = json.loads((tmp_path / "out" / "histories" / stem).read_text())
    assert history[-1][0] <= row["evaluations"]
    assert [entry[2] for entry in history] == sorted((e[2] for e in history), reverse=True)


def test_auto_is_a_method_like_others(config, tmp_path):
  rows = evaluate(
      dataclasses.replace(config, methods=("metis", "auto"), seeds=(0,), max_evaluations=60),
      str(tmp_path / "out"))
  assert rows[1]["method"] == "auto" and rows[1]["evaluations"] <= 60
  assert rows[1]["step_time_us"] <= rows[0]["step_time_us"] * 1.001
  assert validate(str(tmp_path / "out" / "results.csv")) == []


def test_every_search_begins_at_the_given_start_which_counts_as_one_evaluation(config, tmp_path):
  searches = ("annealing", "local_search", "device_pointer",
              "device_pointer_untrained", "device_pointer_uniform")
  rows = evaluate(
      dataclasses.replace(config, methods=("single", "metis") + searches, seeds=(0,),
                          start=("single", "metis")), str(tmp_path / "out"))
  best_us = min(row["step_time_us"] for row in rows[:2])
  assert [row["start_us"] for row in rows] == [None, None] + [best_us] * len(searches)
  for row in rows[2:]:
    stem = row["placement"].split("/")[-1]
    history = json.loads((tmp_path / "out" / "histories" / stem).read_text())
    assert history[0][0] == 1 and history[0][2] == best_us
    assert row["step_time_us"] <= best_us and row["evaluations"] <= 30


def test_the_pointer_is_evaluated_with_the_weights_of_a_directory(config, tmp_path):
  ScorerWeights.untrained(5).save(str(tmp_path / "weights"))
  config = dataclasses.replace(config, methods=("device_pointer", "device_pointer_untrained"),
                               seeds=(5,),
                               policy_weights={"device_pointer": str(tmp_path / "weights")})
  trained, untrained = evaluate(config, str(tmp_path / "out"))
  assert trained["step_time_us"] == untrained["step_time_us"]
  with pytest.raises(PlacetoError, match="policy_weights"):
    evaluate(dataclasses.replace(config, policy_weights={}), str(tmp_path / "out"))
  with pytest.raises(PlacetoError, match="'rnn' has no weights; expected one of device_pointer"):
    dataclasses.replace(config, policy_weights={"rnn": "somewhere"})


def test_replicas_have_a_row_and_a_table_beside_placement_alone(tmp_path):
  spec, out = "zoo:rnnlm:layers=1:hidden=8:steps=2:vocab=16:batch=4", str(tmp_path / "out")
  config = EvaluationConfig(
      (spec,), ("k80:2",), ("single",), max_evaluations=20, replicas="auto")
  rows = evaluate(config, out)
  assert [row["method"] for row in rows] == ["single", "replicas"]
  assert rows[1]["step_time_us"] >= rows[1]["lower_bound_us"] > 0
  assert evaluate(config, out) == rows == read_results(os.path.join(out, "results.csv"))
  line = tables.replicas_table(rows, out).splitlines()[2]
  alone, _, best, form = line.split(" | ")[2:6]
  assert alone == f"{rows[0]['step_time_us'] / 1e3:,.1f}" and form in ("1", "2", "2 mirrored")
  assert best == f"{rows[1]['step_time_us'] / 1e3:,.1f}"
  assert validate(os.path.join(out, "results.csv")) == []
  (tmp_path / "out" / rows[1]["placement"]).write_text("{}")
  assert len(validate(os.path.join(out, "results.csv"))) == 1


def test_replicas_are_placed_as_their_flags_say():
  found = EvaluationConfig(
      ("zoo:rnnlm",), ("k80:2",), ("single",), max_evaluations=20, replicas=2,
      mirrored_variables=True, batch_norm="synchronized", check_replicas=False).placing_config(3)
  assert (found.replicas, found.mirrored_variables, found.seed) == (2, True, 3)
  assert (found.batch_norm, found.check_replicas) == ("synchronized", False)


def test_replicas_that_fit_nowhere_have_no_row_and_do_not_end_the_others(tmp_path):
  described = Cluster.parse("k80:2").to_json()
  for device in described["devices"]:
    device["memory_bytes"] = 1024
  path = tmp_path / "tiny.json"
  path.write_text(json.dumps(described))
  config = EvaluationConfig(
      ("zoo:rnnlm:layers=1:hidden=8:steps=2:vocab=16:batch=4",), (str(path), "k80:2"),
      ("single",), max_evaluations=20, replicas="auto")
  rows = evaluate(config, str(tmp_path / "out"))
  assert [(row["cluster"], row["method"]) for row in rows] == [
      (str(path), "single"), ("k80:2", "single"), ("k80:2", "replicas")]


def test_another_budget_needs_another_directory(config, tmp_path):
  evaluate(config, str(tmp_path / "out"))
  other = dataclasses.replace(config, max_evaluations=31)
  with pytest.raises(PlacetoError, match="max_evaluations=30"):
    evaluate(other, str(tmp_path / "out"))


def test_results_replay_and_a_changed_one_is_found(config, tmp_path):
  evaluate(config, str(tmp_path / "out"))
  path = tmp_path / "out" / "results.csv"
  assert validate(str(path)) == []
  with open(path, newline="") as file:
    rows = list(csv.DictReader(file))
  rows[0]["step_time_us"] = repr(float(rows[0]["step_time_us"]) * 0.5)
  with open(path, "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
  saved = tmp_path / "out" / rows[2]["placement"]
  content = json.loads(saved.read_text())
  content["placement"].pop("branch0/layer0/matmul")
  saved.write_text(json.dumps(content))
  differences = validate(str(path))
  assert len(differences) == 2
  assert "the step takes" in differences[0]
  assert "the digest is not that of the rest of the file" in differences[1]


@pytest.fixture(name="evaluated", scope="module")
def evaluated_fixture(tmp_path_factory):
  """A finished evaluation; its graph stands beside it."""
  root = tmp_path_factory.mktemp("evaluated")
  (root / "small.meta").write_bytes(graph_files.meta_graph_def().SerializeToString())
  evaluate(EvaluationConfig(
      graphs=(str(root / "small.meta"),), clusters=("k80:2",), methods=("single", "metis"),
      seeds=(0, 1), max_evaluations=30, max_groups=8), str(root / "out"))
  return root / "out"


def _rewrite(out, change):
  """Changes the third row of results.csv: METIS with seed 0."""
  with open(out / "results.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  change(rows[2])
  with open(out / "results.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


@pytest.mark.parametrize("field, change", [
    ("peak_memory_bytes", lambda text: repr(float(text) / 2)),
    ("lower_bound_us", lambda text: repr(float(text) * 2)), ("method", lambda text: "heft"),
    ("seed", lambda text: "7"), ("cluster", lambda text: "k80:3"),
    ("evaluations", lambda text: "29"), ("seconds", lambda text: repr(float(text) + 1)),
    ("start_us", lambda text: "5.0"), ("fits", lambda text: "False"),
    ("digest", lambda text: text[::-1]), ("digest", lambda text: ""),
    ("placement", lambda text: text.replace("metis", "single")),
    ("placement", lambda text: f"../{text}"),
])
def test_every_field_of_a_row_that_was_changed_is_noticed(evaluated, tmp_path, field, change):
  out = tmp_path / "out"
  shutil.copytree(evaluated, out)
  assert field != "digest" or validate(str(out / "results.csv")) == []
  _rewrite(out, lambda row: row.update({field: change(row[field])}))
  assert len(validate(str(out / "results.csv"))) == 1


@pytest.mark.parametrize("name", ["placements", "histories"])
def test_a_changed_file_of_a_row_is_noticed(evaluated, tmp_path, name):
  out = tmp_path / "out"
  shutil.copytree(evaluated, out)
  path = sorted((out / name).iterdir())[0]
  content = json.loads(path.read_text())
  if name == "placements":
    content["placement"].pop(sorted(content["placement"])[-1])
  else:
    content[0][2] *= 0.5
  path.write_text(json.dumps(content, indent=1) + "\n")
  assert len(validate(str(out / "results.csv"))) == 1


@pytest.mark.parametrize("name, content", [
    ("results.csv", "a,b\n"), ("results.csv", "\0\n"), ("config.json", "{"),
    ("config.json", "[]"),
    ("results.csv", None), ("config.json", None)])
def test_damaged_files_of_an_evaluation_are_named(evaluated, tmp_path, name, content):
  out = tmp_path / "out"
  shutil.copytree(evaluated, out)
  config = EvaluationConfig(
      graphs=(str(evaluated.parent / "small.meta"),), clusters=("k80:2",),
      methods=("single", "metis"), seeds=(0, 1), max_evaluations=30, max_groups=8)
  (out / name).unlink()
  if content is None:
    os.mkfifo(out / name)
  else:
    (out / name).write_text(content)
  with pytest.raises(PlacetoError, match=name):
    evaluate(config, str(out))


def test_a_results_csv_without_a_line_is_written_again(config, tmp_path):
  config = dataclasses.replace(config, methods=("single",), seeds=(0,))
  for content in ("", "graph,clus"):  # as a kill leaves it
    out = tmp_path / f"out{len(content)}"
    out.mkdir()
    (out / "results.csv").write_text(content)
    rows = evaluate(config, str(out))
    assert read_results(str(out / "results.csv")) == rows and len(rows) == 1


def test_a_second_evaluation_at_the_same_time_says_so(config, tmp_path):
  (tmp_path / "out").mkdir()
  with result_directory.alone(str(tmp_path / "out")):
    with pytest.raises(PlacetoError, match="another run works in"):
      evaluate(config, str(tmp_path / "out"))


@pytest.mark.parametrize("change, culprit", [
    (dict(methods=("magic",)), "magic"), (dict(graphs=()), "graphs"),
    (dict(start=("annealing",)), "start 'annealing'"),
    (dict(max_evaluations=None), "budget"), (dict(max_evaluations=0), "max_evaluations")])
def test_a_configuration_that_is_wrong_is_refused(config, change, culprit):
  with pytest.raises(PlacetoError, match=culprit):
    dataclasses.replace(config, **change)


def test_a_file_that_is_no_results_csv_is_refused(tmp_path):
  path = tmp_path / "results.csv"
  path.write_text("a,b\n1,2\n")
  with pytest.raises(PlacetoError, match="columns"):
    read_results(str(path))
