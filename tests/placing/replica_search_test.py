"""`place(replicas=...)` on a small training graph."""

import dataclasses
import json
import types

import pytest
import tensorflow as tf

import pages
import training_models as models
from placeto_tf import place
from placeto_tf.errors import GraphError, PlacementError, PlacetoError, ReplicaMismatchError
from placeto_tf.graphs import load_graph
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.publishing import report
from placeto_tf.placing.replica_candidates import Candidate, _gaining
from placeto_tf.placing.tables import replica_table, table
from placeto_tf.problem.search_log import SearchLog
from placeto_tf.replication import ReplicaSource
from placeto_tf.runtime.comparing import TrainingComparison


@pytest.fixture(scope="module", name="graph")
def graph_fixture():
  """A deep perceptron with an unknown batch."""
  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    value = v1.placeholder(tf.float32, [None, 512], name="x")
    for i in range(4):
      value = tf.nn.relu(tf.matmul(
          value, v1.get_variable(f"w{i}", [512, 512], use_resource=True), name=f"product_{i}"))
    v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(value), name="train")
  return graph.as_graph_def()


@pytest.fixture(scope="module", name="placed")
def placed_fixture(graph):
  return place(load_graph(graph, fetches=["train"], batch_size=4096), "v100:2", replicas="auto",
               max_evaluations=400, max_groups=8)


def test_auto_has_a_row_for_every_divisor_of_the_devices_and_strategy(placed):
  rows = placed.replication.rows
  assert list(rows) == ["1", "2", "2 mirrored"]
  assert all(row.global_batch == 4096 for row in rows.values())
  assert placed.step_time_us == min(row.step_time_us for row in rows.values() if row.fits)
  assert placed.evaluations <= 400 + 20


def test_ctrl_c_keeps_the_best_strategy_and_says_so(graph, placed):
  def press(problem, stage):
    if stage == "symmetric":
      raise KeyboardInterrupt

  found = place(load_graph(graph, fetches=["train"], batch_size=4096), "v100:2", replicas="auto",
                max_evaluations=400, max_groups=8, progress=press)
  assert found.interrupted and report(found)["interrupted"] and ": Ctrl-C." in str(found)
  assert 0 < found.evaluations < placed.evaluations and placed.ended == "the budget is used"


def test_where_compute_outweighs_the_links_replicas_win(placed):
  assert placed.replication.chosen.replicas == 2
  assert placed.step_time_us < 0.8 * placed.baselines["current"].step_time_us
  assert placed.replication.data_parallel.step_time_us < (
      placed.baselines["current"].step_time_us)


def test_the_placement_is_of_the_replicated_graph(placed):
  names = set(placed.placement)
  assert "replica_0/product_0" in names and "replica_1/product_0" in names
  assert all(node.device for node in placed.placement.apply(placed.graph.source.graph_def).node)


def test_the_report_says_that_the_feeds_stay_and_that_replicas_were_checked(placed):
  found = json.loads(json.dumps(report(placed)))["replicas"]
  assert set(found) == pages.fields("Replicas")
  assert "takes the whole batch" in found["placed"]["feeds"]
  assert found["placed"]["global_batch"] == 4096
  chosen = placed.replication.chosen
  assert found["placed"]["mirrored_variables"] == chosen.mirrored
  assert found["rows"][chosen.strategy]["examples_per_second"] == pytest.approx(
      4096e6 / placed.step_time_us)
  check = found["check"]
  assert check["checked"] and (check["steps"], check["variables"]) == (5, 4)
  assert check["largest_difference"] < 1e-4 and check["seconds"] > 0
  assert check["text"].startswith("checked: 5 steps, 4 variables, largest difference ")
  assert found["rows"][chosen.strategy]["check"] == check["text"]


def test_the_table_has_a_row_for_each_strategy_and_the_check(placed):
  lines = replica_table(placed.replication)
  assert [line.split("  ")[0] for line in lines[2:]] == [
      "1", "2", "2 mirrored", "data parallelism", "the same, by process"]
  assert [line.split("  ")[0] for line in lines if "placed; checked: 5 steps" in line] == [
      placed.replication.chosen.strategy]
  begins = {line.index(said) for line in lines for said in ("placed; ", "mirrored variables, ")
            if said in line}
  assert len(begins) == 1 and len(lines[1]) < begins.pop()  # what is said does not widen the table
  assert "data parallelism" in table(placed)


def _baked(graph, batch):
  with tf.Graph().as_default() as baked:
    x = tf.compat.v1.placeholder(tf.float32, [batch, 512], name="x")
    tf.graph_util.import_graph_def(graph, input_map={"x:0": x}, name="")
  return load_graph(baked.as_graph_def(), fetches=["train"])


def test_a_batch_that_is_baked_in_is_divided_where_it_can_be_and_else_grows(graph):
  source = ReplicaSource(_baked(graph, 8))
  assert not source.free_batch
  assert source.replicas(2).global_batch == 8 and "grew" not in str(source.replicas(2).notes)
  grown = source.replicas(3)
  assert grown.global_batch == 24 and "from 8 to 24" in grown.notes[0]


def test_data_parallelism_keeps_as_many_devices_busy_as_the_batch_allows(graph):
  """A batch of 6 on 4 devices: two replicas of 3."""
  found = place(load_graph(graph, fetches=["train"], batch_size=6), "k80:4", replicas="auto",
                max_evaluations=40, max_groups=4).replication
  assert list(found.rows) == ["1", "2", "2 mirrored"] and "6 examples" in found.refused
  assert found.data_parallel.global_batch == 6
  assert (found.data_parallel.peak_memory_bytes > 0).sum() == 2


@pytest.mark.parametrize("error", (
    GraphError("op 'a' (B) cannot be divided"), ValueError("Dimensions must be equal\nTraceback")))
def test_auto_goes_on_without_a_strategy_that_cannot_be_made_and_says_so(graph, monkeypatch, error):
  source = ReplicaSource(load_graph(graph, fetches=["train"], batch_size=64))
  made = source.replicas

  def fails(count, mirrored=False, *more):
    if count == 2 and not mirrored:
      raise error
    return made(count, mirrored, *more)

  monkeypatch.setattr(source, "replicas", fails)
  found = place(source, "k80:2", replicas="auto", max_evaluations=40, max_groups=4)
  assert list(found.replication.rows) == ["1", "2 mirrored"]
  said = [line for line in replica_table(found.replication) if "not tried" in line]
  assert len(said) == 1 and said[0].startswith("2 ") and str(error).split("\n")[0] in said[0]
  assert report(found)["replicas"]["not_made"].keys() == {"2"}
  with pytest.raises(type(error)):  # asked for, it is an error
    place(source, "k80:2", replicas=2, max_evaluations=40, max_groups=4)


def test_replicas_that_cannot_be_run_are_handed_over_only_if_no_check_is_asked_for(
    graph, monkeypatch):
  source = ReplicaSource(load_graph(graph, fetches=["train"], batch_size=4096))
  monkeypatch.setattr(source, "small", lambda *_: 1 / 0)
  options = {"max_evaluations": 40, "max_groups": 4}
  found = place(source, "v100:2", replicas="auto", **options)
  assert found.replicated is None and "division by zero" in found.replication.refused
  with pytest.raises(ReplicaMismatchError, match="check_replicas=False"):
    place(source, "v100:2", replicas=2, **options)
  found = place(
      source, "v100:2", replicas=2, mirrored_variables=False, check_replicas=False, **options)
  assert found.replicated.replicas == 2 and str(found).startswith(
      "2 replicas were not compared with the graph: not checked, as asked.\n")
  check = TrainingComparison(True, own_statistics=False)
  found = dataclasses.replace(found, replication=dataclasses.replace(
      found.replication, check=check))
  assert str(found).startswith("2 replicas were not fully compared with the graph: replicas' own "
                               "statistics not run, for lack of time.\n")


@pytest.mark.parametrize("spec, options, rows", [
    ("replicas=2:", {}, ["1", "2", "2 mirrored"]), ("", {}, None),
    ("replicas=2:", {"replicas": "1 x 2"}, ["1", "1 x 2"])])
def test_a_spec_names_the_replicas_unless_the_options_do(spec, options, rows):
  found = place(f"zoo:rnnlm:{spec}batch=4:steps=2:layers=1:hidden=8:vocab=16", "k80:2",
                max_evaluations=15, max_groups=4, check_replicas=False, **options).replication
  assert (found and list(found.rows)) == rows


@pytest.mark.parametrize("replicas, words", [
    (0, "at least 1"), (-1, "at least 1"), ("two", "auto, a whole number"), (2.5, "whole"),
    (3, "more than the cluster's 2 devices")])
def test_a_number_of_replicas_that_does_not_fit(graph, replicas, words):
  with pytest.raises(PlacementError, match=words):
    place(load_graph(graph, fetches=["train"], batch_size=8), "v100:2", replicas=replicas,
          max_evaluations=10)


def test_an_inference_graph_is_placed_as_it_is_and_says_why(graph):
  inference = load_graph(graph, fetches=["product_3"], batch_size=8)
  with pytest.raises(PlacetoError, match="no variable is updated"):
    place(inference, "v100:2", replicas=2, max_evaluations=10)
  found = place(inference, "v100:2", replicas="auto", max_evaluations=30, max_groups=4)
  assert list(found.replication.rows) == ["1"] and found.replication.data_parallel is None
  assert any("no variable is updated" in note for note in found.notes)


@pytest.mark.parametrize("mirrored, rows", [(True, ["1", "2 mirrored"]), (False, ["1", "2"])])
def test_the_strategy_can_be_chosen(graph, mirrored, rows):
  found = place(load_graph(graph, fetches=["train"], batch_size=8), "v100:2", replicas=2,
                mirrored_variables=mirrored, max_evaluations=30, max_groups=4)
  assert list(found.replication.rows) == rows
  assert found.replication.chosen.mirrored == mirrored
  assert found.replication.data_parallel is not None
  assert any("the variables with the original names" in note for note in found.notes) == mirrored
  assert ("replica_1/w0" in found.placement) == mirrored


def test_variables_of_a_function_are_shared_unless_that_is_refused():
  weights = tf.Variable(tf.ones([64, 8]))
  function = load_graph(models.function(weights, None), batch_size=8)
  options = {"replicas": 2, "max_evaluations": 20, "max_groups": 4}
  assert list(place(function, "v100:2", **options).replication.rows) == ["1", "2"]
  with pytest.raises(PlacetoError, match="variables are objects of the program"):
    place(function, "v100:2", mirrored_variables=True, **options)
  with pytest.raises(PlacementError, match="mirrored_variables is 'yes'"):
    PlacingConfig(mirrored_variables="yes")


def candidate(replicas, excess_bytes, objective_us, gain_us=0.0):
  log = SearchLog(best_excess_bytes=excess_bytes, best_objective_us=objective_us, evaluations=7)
  return Candidate(replicas, 8, types.SimpleNamespace(search_log=log), gain_us=gain_us)


def test_what_fits_comes_before_what_is_faster_and_then_what_is_closest_to_fitting():
  candidates = [candidate(1, 9, 20.0), candidate(2, 5, 90.0), candidate(4, 0, 400.0)]
  assert [each.replicas for each in sorted(candidates, key=lambda each: each.rank)] == [4, 2, 1]


def test_a_strategy_is_slower_only_if_its_last_gain_would_not_make_it_the_best():
  """Times of 8 examples: 50 - 8 x 2 = 34 is above 33, 128 - 8 x 12 = 32 is not."""
  found = [candidate(1, 0, 33.0, 0.1), candidate(2, 0, 50.0, 2.0), candidate(4, 0, 128.0, 12.0)]
  assert _gaining(found) == [found[0], found[2]]
  assert found[1].dropped == "52 % behind '1' after 7 evaluations" and not found[2].dropped
  lacking = [candidate(1, 5, 20.0), candidate(2, 0, 400.0, float("inf"))]
  assert _gaining(lacking) == [lacking[1]] and lacking[0].dropped == "nothing was found that fits"
