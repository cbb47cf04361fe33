"""Evaluations resume, refuse to mix budgets, and replay."""

import dataclasses
import json
import os
import shutil

import pandas as pd
import pytest

import graph_files
import pages
from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation import EvaluationConfig, evaluate, read_results, tables
from placeto_tf.policies.placeto.scorer import ScorerWeights


def _config(folder):
  """Of two methods on the small graph, which is written into the folder."""
  path = graph_files.write(graph_files.meta_graph_def(), folder / "small.meta")
  return EvaluationConfig(
      graphs=(path,), clusters=("k80:2",), methods=("single", "metis"), seeds=(0, 1),
      max_evaluations=30, max_groups=8)


@pytest.fixture(name="config")
def config_fixture(tmp_path):
  return _config(tmp_path)


def test_every_method_and_seed_has_its_row_within_the_budget(config, tmp_path):
  rows = evaluate(config, str(tmp_path / "out"))
  assert list(zip(rows["method"], rows["seed"])) == [
      ("single", 0), ("single", 1), ("metis", 0), ("metis", 1)]
  assert rows["evaluations"].between(1, 30).all()
  assert (rows["step_time_us"] >= rows["lower_bound_us"]).all()
  pd.testing.assert_frame_equal(read_results(str(tmp_path / "out" / "results.csv")), rows)
  assert set(rows) == pages.fields("results.csv")


def test_an_interrupted_run_goes_on_where_it_stopped(config, tmp_path):
  out = str(tmp_path / "out")
  ran = []

  def interrupt(done, total, row):
    ran.append((row["method"], row["seed"]))
    if done == 2:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    evaluate(config, out, progress=interrupt)
  rows = evaluate(config, out, progress=interrupt)
  assert ran == [("single", 0), ("single", 1), ("metis", 0), ("metis", 1)] and len(rows) == 4
  pd.testing.assert_frame_equal(evaluate(config, out, progress=interrupt), rows)


def test_a_first_run_that_fails_leaves_nothing_in_the_way_of_another(config, tmp_path):
  out = str(tmp_path / "out")
  (tmp_path / "empty.meta").touch()
  with pytest.raises(PlacetoError, match="empty.meta"):
    evaluate(dataclasses.replace(
        config, graphs=(str(tmp_path / "empty.meta"),), max_evaluations=20), out)
  assert len(evaluate(config, out)) == 4


@pytest.mark.parametrize("wrong", [
    dict(graphs=("missing.meta",)), dict(graphs=("zoo:missing",)), dict(clusters=("missing:2",))])
def test_specs_and_files_are_checked_before_the_first_run(config, tmp_path, wrong):
  (name, values), = wrong.items()
  with pytest.raises(PlacetoError, match="missing"):
    evaluate(dataclasses.replace(config, **{name: getattr(config, name) + values}),
             str(tmp_path / "out"), progress=lambda *row: pytest.fail("a row was run"))


def test_every_search_begins_at_the_given_start_which_counts_as_one_evaluation(config, tmp_path):
  searches = ("annealing", "local_search", "placeto",
              "placeto_untrained", "placeto_uniform")
  rows = evaluate(
      dataclasses.replace(config, methods=("single", "metis") + searches, seeds=(0,),
                          start=("single", "metis")), str(tmp_path / "out"))
  best_us = rows["step_time_us"][:2].min()
  assert rows["start_us"][:2].isna().all() and (rows["start_us"][2:] == best_us).all()
  for row in rows[2:].to_dict("records"):
    stem = row["placement"].split("/")[-1]
    history = json.loads((tmp_path / "out" / "histories" / stem).read_text())
    assert history[0][0] == 1 and history[0][2] == best_us
    assert row["step_time_us"] <= best_us and row["evaluations"] <= 30


def test_the_pointer_is_evaluated_with_the_weights_of_a_directory(config, tmp_path):
  ScorerWeights.untrained(5).save(str(tmp_path / "weights"))
  config = dataclasses.replace(config, methods=("placeto", "placeto_untrained"),
                               seeds=(5,),
                               policy_weights={"placeto": str(tmp_path / "weights")})
  trained, untrained = evaluate(config, str(tmp_path / "out")).to_dict("records")
  assert trained["step_time_us"] == untrained["step_time_us"]
  with pytest.raises(PlacetoError, match="policy_weights"):
    evaluate(dataclasses.replace(config, policy_weights={}), str(tmp_path / "out"))
  with pytest.raises(PlacetoError, match="'rnn' has no weights; expected one of gdp, placeto"):
    dataclasses.replace(config, policy_weights={"rnn": "somewhere"})


def test_replicas_have_a_row_and_a_table_beside_placement_alone(tmp_path):
  spec, out = "zoo:rnnlm:layers=1:hidden=8:steps=2:vocab=16:batch=4", str(tmp_path / "out")
  config = EvaluationConfig(
      (spec,), ("k80:2",), ("single",), max_evaluations=20, replicas="auto")
  found = evaluate(config, out)
  rows = found.to_dict("records")
  assert [row["method"] for row in rows] == ["single", "replicas"]
  assert rows[1]["step_time_us"] >= rows[1]["lower_bound_us"] > 0
  pd.testing.assert_frame_equal(evaluate(config, out), found)
  alone, _, best, strategy = tables.replicas_table(found, out).splitlines()[2].split(" | ")[2:6]
  assert alone == f"{rows[0]['step_time_us'] / 1e3:,.1f}" and strategy in ("1", "2", "2 mirrored")
  assert best == f"{rows[1]['step_time_us'] / 1e3:,.1f}"


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
  assert list(zip(rows["cluster"], rows["method"])) == [
      (str(path), "single"), ("k80:2", "single"), ("k80:2", "replicas")]


@pytest.fixture(name="evaluated", scope="module")
def evaluated_fixture(tmp_path_factory):
  """The configuration of a finished evaluation, and its directory."""
  root = tmp_path_factory.mktemp("evaluated")
  evaluate(_config(root), str(root / "out"))
  return _config(root), root / "out"


@pytest.mark.parametrize("name, content", [
    ("results.csv", "a,b\n"), ("results.csv", "\0\n"), ("results.csv", '{"small": 1}\n'),
    ("config.json", "{"), ("config.json", "[]"), ("results.csv", None), ("config.json", None)])
def test_damaged_files_of_an_evaluation_are_named(evaluated, tmp_path, name, content):
  config, finished = evaluated
  out = tmp_path / "out"
  shutil.copytree(finished, out)
  (out / name).unlink()
  if content is None:
    os.mkfifo(out / name)
  else:
    (out / name).write_text(content)
  ran = []  # a damage is found before anything is run
  with pytest.raises(PlacetoError, match=name):
    evaluate(dataclasses.replace(config, seeds=(0, 1, 2)), str(out),
             progress=lambda *row: ran.append(row))
  assert not ran


@pytest.mark.parametrize("change, culprit", [
    (dict(methods=("magic",)), "magic"), (dict(graphs=()), "graphs"),
    (dict(start=("annealing",)), "start 'annealing'"),
    (dict(budgets=(40,)), "budgets are 40 and max_evaluations is 30"),
    (dict(max_evaluations=None), "budget"), (dict(max_evaluations=0), "max_evaluations")])
def test_a_configuration_that_is_wrong_is_refused(config, change, culprit):
  with pytest.raises(PlacetoError, match=culprit):
    dataclasses.replace(config, **change)
