"""Several signatures of a SavedModel: placed in one run, written, served."""

import os

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError, PlacementError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import write_placed
from placeto_tf.placing import reports
from placeto_tf.placing.run import place_signatures
from placeto_tf.placing.signatures import folder_of
from placeto_tf.runtime import session as session_lib

v1 = tf.compat.v1
_KEYS = ("train", "serving_default", "embed")


class _Model(tf.Module):
  """Two branches of eight units, a head, and a training step; `spare` is only for one signature."""

  def __init__(self):
    self.branches = [tf.Variable(tf.random.stateless_normal([64, 8], [1, i])) for i in range(2)]
    self.head = tf.Variable(tf.random.stateless_normal([8, 3], [2, 1]))
    self.spare = tf.Variable(tf.random.stateless_normal([8, 4096], [3, 1]))

  def _body(self, x):
    return tf.add_n([tf.nn.tanh(x @ branch) for branch in self.branches])

  @tf.function(input_signature=[tf.TensorSpec([None, 64])])
  def predict(self, x):
    return {"y": self._body(x) @ self.head}

  @tf.function(input_signature=[tf.TensorSpec([None, 64])])
  def embed(self, x):
    return {"y": tf.nn.l2_normalize(self._body(x) @ self.spare, -1)}

  @tf.function(input_signature=[tf.TensorSpec([None, 64])])
  def train(self, x):
    variables = [*self.branches, self.head]
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(self._body(x) @ self.head))
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
      variable.assign_sub(0.1 * gradient)
    return {"y": loss}


@pytest.fixture(scope="module", name="saved")
def saved_fixture(tmp_path_factory):
  model = _Model()
  path = str(tmp_path_factory.mktemp("models") / "model")
  tf.saved_model.save(model, path, signatures={
      "serving_default": model.predict, "embed": model.embed, "train": model.train})
  return path


@pytest.fixture(scope="module", name="placed")
def placed_fixture(saved):
  # A link between the halves of a process costs little, so that ops spread.
  cluster = Cluster.parse("cpu:2")
  return place_signatures(
      saved, cluster, _KEYS, "annealing", batch_size=512, max_evaluations=240, seed=3)


def _serve(path, key, value, trace):
  """What a session that serves a signature answers, and where its ops ran."""
  metadata = v1.RunMetadata()
  with v1.Session(graph=tf.Graph(), config=session_lib.session_config(num_cpus=2)) as session:
    signature = v1.saved_model.load(session, ["serve"], path).signature_def[key]
    answer = session.run(
        signature.outputs["y"].name, {next(iter(signature.inputs.values())).name: value},
        options=session_lib.trace_options() if trace else None,
        run_metadata=metadata if trace else None)
  return answer, session_lib.executed_devices(metadata)


def test_every_signature_runs_where_the_one_placement_says(placed, saved, tmp_path):
  path = write_placed(placed.graph, placed.placement, str(tmp_path))
  assert len(set(placed.placement.values())) == 2
  value = np.linspace(-1, 1, 2 * 64, dtype=np.float32).reshape(2, 64)
  for key in _KEYS:
    answer, devices = _serve(path, key, value, trace=True)
    expected, _ = _serve(saved, key, value, trace=False)
    np.testing.assert_array_equal(answer, expected)
    graph = placed.results[key].graph
    ran = [op for op in graph.op_names if op in devices]
    assert {"MatMul", "ReadVariableOp"} <= {graph.op_types[graph.op_index[op]] for op in ran}
    for op in ran:
      assert devices[op] == {placed.placement[op].replace("/CPU", "/device:CPU")}


def test_the_bodies_of_all_functions_hold_the_devices(placed, tmp_path):
  path = write_placed(placed.graph, placed.placement, str(tmp_path))
  for key in _KEYS:
    again = load_graph(path, signature=key, batch_size=512)
    assert [device.replace("/device:CPU", "/CPU") for device in again.assigned_devices] == [
        placed.placement[op] for op in again.op_names]


def test_each_result_is_what_its_signature_takes_placed_so(placed, saved):
  assert list(placed.results) == list(_KEYS)
  for key, found in placed.results.items():
    graph = load_graph(saved, signature=key, batch_size=512)
    simulated = placeto_tf.simulate(graph, placed.cluster, placed.placement)
    assert simulated.step_time_us == found.step_time_us
    assert found.placement == placed.placement
    single = np.zeros(graph.num_ops, np.int32)
    assert found.baselines["current"].step_time_us == pytest.approx(
        placeto_tf.simulate(graph, placed.cluster, single).step_time_us)


def test_what_signatures_share_is_counted_once(placed):
  variables = 4 * (2 * 64 * 8 + 8 * 3 + 8 * 4096)
  assert variables <= placed.held_bytes.sum() < variables + 4096


def test_signatures_that_do_not_fit_together_are_refused(saved):
  small = Cluster.parse("cpu:1")
  device = small.devices[0]
  for memory_bytes, fits in ((600_000, True), (170_000, False)):
    cluster = Cluster(
        (type(device)(device.name, device.type, memory_bytes, properties=device.properties),),
        small.bandwidth_bytes_per_us, small.latency_us, small.op_overhead_us)
    keys = ("serving_default", "embed")
    if fits:
      place_signatures(saved, cluster, keys, "single", batch_size=2, max_evaluations=8)
    else:
      with pytest.raises(PlacementError, match="fit"):
        place_signatures(saved, cluster, keys, "single", batch_size=2, max_evaluations=8)


def test_all_are_placed_the_default_one_first(saved):
  found = place_signatures(saved, "cpu:1", method="single", batch_size=2, max_evaluations=9)
  assert list(found.results) == ["serving_default", "embed", "train"]
  text = reports.table(found)
  assert [line.split()[0] for line in text.splitlines()[2:6]] == [
      "serving_default", "embed", "train", "variables"]
  assert "only the signature" not in text
  report = reports.report_of_signatures(found)
  assert report["signatures"]["train"]["step_time_us"] == found.results["train"].step_time_us


def test_one_that_is_left_out_is_named_once(saved):
  found = place_signatures(
      saved, "cpu:1", ["embed", "train"], "single", batch_size=2, max_evaluations=8)
  assert [note for note in found.notes if "serving_default" in note]
  assert not [note for each in found.results.values() for note in each.notes if "only" in note]


@pytest.mark.parametrize("keys, options, error, culprit", [
    (["train", "train"], {}, GraphError, "'train' is named twice"),
    (["train", "nothing"], {}, GraphError, "no signature 'nothing'"),
    ([], {}, GraphError, "no signature is named"),
    ("all", {"fetches": ["x"]}, GraphError, "leave fetches out"),
    ("all", {"replicas": 2}, PlacementError, "place one signature"),
])
def test_what_is_wrong_is_named(saved, keys, options, error, culprit):
  with pytest.raises(error, match=culprit):
    place_signatures(saved, "cpu:2", keys, batch_size=2, max_evaluations=8, **options)


def test_results_of_a_signature_have_a_folder_of_its_own():
  assert folder_of("serving_default") == "serving_default"
  names = {folder_of(key) for key in ("a/b", "a_b", "..", "", "é")}
  assert len(names) == 5
  assert all(name and os.path.basename(name) == name and "." not in name for name in names)
