"""`place()` on a small training graph: rows, budgets, pins, bad input."""

import base64
import collections
import io
import re

import numpy as np
import pytest
from PIL import Image

import graph_files
from placeto_tf import place
from placeto_tf.clusters import Cluster
from placeto_tf.errors import MeasurementError, PlacementError, PlacetoError
from placeto_tf.graphs import load_graph
from placeto_tf.placing import measured_search, observing, run
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.policies.placeto.scorer import ScorerWeights


@pytest.fixture(scope="module", name="graph")
def graph_fixture():
  return load_graph(graph_files.meta_graph_def())


@pytest.fixture(scope="module", name="automatic")
def automatic_fixture(graph):
  """Placed by all placers together; importing the policy takes most of the time."""
  return place(graph, "k80:2", max_evaluations=120, max_groups=8, seed=1)


def test_auto_has_a_row_for_each_contributor(automatic):
  rows = automatic.baselines
  assert list(rows)[:4] == ["current", "single", "expert", "metis"]
  # All evaluations of a small budget beside those of the starts are the policy's.
  assert {"placeto", "m_etf", "heft"} <= set(rows)
  assert sum(row.evaluations for row in rows.values()) == automatic.evaluations <= 120
  first_us = automatic.history[0][2]
  assert first_us - sum(row.gain_us for row in rows.values()) == pytest.approx(
      automatic.step_time_us)


def test_auto_is_no_worse_than_any_of_its_rows(automatic):
  assert automatic.fits
  assert automatic.lower_bound_us <= automatic.step_time_us <= min(
      row.step_time_us for row in automatic.baselines.values() if row.step_time_us is not None)
  assert automatic.simulated.step_time_us == automatic.step_time_us


def test_the_placement_says_what_was_found(automatic):
  placement = automatic.placement
  assert placement.step_time_us == automatic.step_time_us
  assert placement.baselines["single"]["step_time_us"] == (
      automatic.baselines["single"].step_time_us)
  assert (placement.indices(automatic.graph, automatic.cluster) == automatic.indices).all()


def test_one_method_runs_after_the_baselines(graph):
  result = place(graph, "k80:2", "local_search", max_evaluations=90, max_groups=8)
  assert list(result.baselines) == ["current", "single", "expert", "metis", "local_search"]
  assert result.evaluations == 90


def test_a_notebook_shows_the_table_and_the_timeline(automatic):
  shown = automatic._repr_html_()
  assert re.findall(r"<th>(.*?)</th>", shown)[:4] == ["placer", "step time", "speed-up", "fits"]
  assert re.search(r"<td>best</td>\s*<td>[\d.]+ ms</td>", shown)
  assert "What bounds the step" in shown
  png = base64.b64decode(re.search(r'src="data:image/png;base64,(.*?)"', shown).group(1))
  assert Image.open(io.BytesIO(png)).size[0] > 500


def test_a_log_gets_lines_and_the_times_not_the_states_of_a_bar(graph, capsys, monkeypatch):
  monkeypatch.setattr(observing, "_LINE_SECONDS", 0.0)
  place(graph, "k80:2", "annealing", max_evaluations=30, max_groups=8,
        progress=observing.Observer(True, spent_s=collections.Counter(tracing=12.3)))
  said = capsys.readouterr().err
  assert re.search(r"^Estimating costs \.\.\..* \d+\.\d s$", said, re.M)
  assert re.search(r"^Placing \(\w+\): \d+ of 30 placements, best [\d.,]+ ms, \d+ eval", said, re.M)
  assert said.splitlines()[-1].startswith("Time: tracing 12 s") and "%|" not in said


def test_ctrl_c_keeps_what_was_found(graph):
  pressed_at = []

  def press(problem, stage):
    if stage == "annealing" and problem.search_log.evaluations >= 50:
      pressed_at.append(problem.search_log.evaluations)
      raise KeyboardInterrupt

  result = place(
      graph, "k80:2", "annealing", max_evaluations=5000, max_groups=8, progress=press)
  assert result.interrupted and [result.evaluations] == pressed_at
  assert 0 < result.baselines["annealing"].evaluations <= result.evaluations < 5000
  assert result.step_time_us <= result.baselines["metis"].step_time_us


@pytest.mark.usefixtures("clock_of_looks")
def test_one_device_has_nothing_to_gain_and_is_answered_at_once(graph):
  result = place(graph, "cpu:1", max_seconds=60)
  assert result.proven and result.seconds < 5
  assert result.step_time_us == result.baselines["current"].step_time_us


def test_a_graph_that_fits_nowhere_is_refused_with_what_it_needs(graph):
  cluster = Cluster.parse("k80:2").to_json()
  for device in cluster["devices"]:
    device["memory_bytes"] = 1000
  with pytest.raises(PlacementError, match="fits"):
    place(graph, Cluster.from_json(cluster), "annealing", max_evaluations=60)


@pytest.mark.parametrize("options, culprit", [
    (dict(method="magic"), "magic"), (dict(existing_devices="move"), "move"),
    (dict(pins=(("nothing", "/GPU:0"),)), "nothing"), (dict(grouping="magic"), "magic"),
    (dict(replicas="2 mirrored"), "the number with mirrored_variables=True"),
    (dict(replicas="2 sliced"), "the number with slices=")])
def test_options_that_are_wrong_are_refused(graph, options, culprit):
  with pytest.raises(PlacetoError, match=culprit):
    place(graph, "k80:2", **{"method": "single", **options})


def test_placeto_takes_weights_of_a_training_run(graph, tmp_path):
  ScorerWeights.untrained(4).save(str(tmp_path / "run" / "weights"))
  options = dict(max_evaluations=60, max_groups=8, seed=4)
  given = place(graph, "k80:2", "placeto", policy_weights=str(tmp_path / "run"), **options)
  untrained = place(graph, "k80:2", "placeto_untrained", **options)
  assert np.array_equal(given.indices, untrained.indices)
  with pytest.raises(PlacementError, match="takes no policy_weights; expected one of placeto, pla"):
    place(graph, "k80:2", "annealing", policy_weights=str(tmp_path / "run"))


@pytest.mark.parametrize("method", ["placeto", "gdp", "placeto_paper_zero_shot"])
def test_weights_that_cannot_be_read_are_found_before_the_search(graph, tmp_path, method):
  (tmp_path / "weights.json").write_text("0.5")
  placed = []
  with pytest.raises(PlacetoError, match="weights.json.* holds 0.5, expected an object"):
    # So small a budget leaves the method nothing, and it would not look at its weights.
    place(graph, "k80:2", method, policy_weights=str(tmp_path), max_evaluations=1,
          progress=lambda *_: placed.append(1))
  assert not placed


def test_simulate_takes_indices_and_placements(automatic):
  indices = run.simulate(automatic.graph, automatic.cluster, automatic.indices)
  named = run.simulate(automatic.graph, automatic.cluster, automatic.placement)
  assert indices.step_time_us == named.step_time_us == automatic.step_time_us
  assert np.array_equal(indices.peak_memory_bytes, automatic.peak_memory_bytes)


@pytest.mark.parametrize("error, note, interrupted", [
    (MeasurementError("worker 1 is gone"), "measuring failed .*worker 1 is gone", False),
    (OSError(11, "Resource temporarily unavailable"), "failed .BlockingIOError", False),
    (KeyboardInterrupt(), "failed .KeyboardInterrupt", True)])
def test_whatever_measuring_does_the_result_of_the_search_is_there(
    graph, monkeypatch, error, note, interrupted):
  def fail(*_, **__):
    raise error

  monkeypatch.setattr(measured_search, "search_on_workers", fail)
  result = place(graph, "k80:2", "metis", max_evaluations=20, max_groups=8, timing="session")
  assert any(re.search(note, each) for each in result.notes)
  assert result.interrupted is interrupted and result.measured is None
  assert result.step_time_us <= result.baselines["metis"].step_time_us


def test_the_search_ends_within_a_share_of_the_bound_and_says_so(graph, automatic):
  assert automatic.ended == ("the best is proven" if automatic.proven else "the budget is used")
  found = place(graph, "k80:2", "auto_unlearned", max_evaluations=400, stop_within=1e3)
  assert found.ended.startswith("the bound is met within") or found.proven
  assert found.evaluations < 400
  used_up = place(graph, "k80:2", "annealing", max_evaluations=60)
  assert used_up.ended == "the budget is used" and used_up.evaluations == 60


def test_only_a_limit_of_time_is_cut_short_unless_it_is_asked_for():
  assert PlacingConfig(max_evaluations=5).budget.stop_within is None
  assert PlacingConfig(max_evaluations=5, stop_within=0.1).budget.stop_within == 0.1
  assert PlacingConfig().budget.stop_within == 0.01
  assert PlacingConfig(stop_within=0).budget.stop_within is None
  with pytest.raises(PlacementError, match="stop_within is -1"):
    PlacingConfig(stop_within=-1)
