"""The host as a device of `place`: pinned, kept, as the graph has it, or needed; what if not."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placing import tables
from placeto_tf.placing.explaining import explain, small_step, why_lines
from placeto_tf.placing.publishing import report
from placeto_tf.simulation import Simulator

v1 = tf.compat.v1
PIN = {"pins": (("embedding/.*", "/CPU:0"),)}
BUDGET = {"method": "annealing", "max_evaluations": 60, "seed": 0}


def _graph(rows, scope=contextlib.nullcontext):
  """A look-up of 256 rows of 64 numbers, and a product with them, trained."""
  with tf.Graph().as_default() as graph:
    ids = v1.placeholder(tf.int32, [None], name="ids")
    with scope(), v1.variable_scope("embedding"):
      table = v1.get_variable("table", [rows, 64])
      looked_up = tf.nn.embedding_lookup(table, ids)
    head = v1.get_variable("head", [64, 1])
    loss = tf.reduce_mean(tf.matmul(looked_up, head) ** 2)
    v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  return placeto.load_graph(graph, fetches=["train"], batch_size=256)


def _on_host():
  return tf.device("/CPU:0")


def _current_us(result):
  return result.baselines["current"].step_time_us


@pytest.fixture(name="small", scope="module")
def small_fixture():
  return _graph(50_000)


@pytest.fixture(name="free", scope="module")
def free_fixture(small):
  return placeto.place(small, "v100:2", **BUDGET)


def test_a_pin_to_the_host_is_obeyed_and_current_counts_no_pins(small, free):
  result = placeto.place(small, "v100:2", **BUDGET, **PIN)
  assert result.placement["embedding/table"] == "/CPU:0" and result.fits
  assert result.placement["head"] != "/CPU:0"
  assert _current_us(result) == _current_us(free)


def test_the_graphs_own_host_is_kept_where_that_is_asked(capfd):
  result = placeto.place(_graph(50_000, _on_host), "v100:4", existing_devices="keep", **BUDGET)
  assert result.placement["embedding/table"] == "/CPU:0"
  assert "Cannot bisect" not in capfd.readouterr().out


def test_current_is_where_the_graph_has_its_ops_and_what_is_moved_is_told(free):
  graph = _graph(50_000, _on_host)
  result = placeto.place(graph, "v100:2", **BUDGET)
  current = result.baselines["current"]
  table = graph.op_index["embedding/table"]
  assert result.cluster.device_names[current.placement[table]] == "/CPU:0"
  assert current.step_time_us > _current_us(free)
  assert any("on the host, such as 'embedding" in note and "moves" in note for note in result.notes)


def test_a_table_larger_than_a_device_goes_to_the_host():
  result = placeto.place(_graph(80_000_000), "v100:2", **BUDGET)
  assert result.placement["embedding/table"] == "/CPU:0" and result.fits
  assert result.placement["MatMul"] != "/CPU:0"


def test_sets_of_devices_narrow_the_search(small):
  result = placeto.place(
      small, "v100:4", allowed={"embedding/.*": ["/GPU:2", "/CPU:0"], "head": ["/GPU:3"]}, **BUDGET)
  assert result.placement["embedding/table"] in ("/GPU:2", "/CPU:0")
  assert result.placement["head"] == "/GPU:3"
  with pytest.raises(PlacementError, match="expected expressions with a list of devices"):
    placeto.place(small, "v100:4", allowed={"head": "/GPU:3"}, **BUDGET)


def test_what_if_is_the_step_of_the_changed_placement(small, free):
  found = free.what_if({"embedding/.*": "/CPU:0"})
  changed = {**free.placement.op_devices, **{name: "/CPU:0" for name in found.moved}}
  indices = [free.cluster.device_names.index(changed[name]) for name in small.op_names]
  before_us, after_us = found.before.step_time_us, found.after.step_time_us
  assert after_us == placeto.simulate(small, free.cluster, indices).step_time_us
  assert before_us == free.step_time_us < after_us
  assert "embedding/table" in found.moved and "times as long" in str(found)
  assert found.before.compute_us.keys() != found.after.compute_us.keys()
  assert free.what_if({".*table.*": "/GPU:1"}).fits
  with pytest.raises(PlacementError, match="matches none"):
    free.what_if({"nothing": "/CPU:0"})
  with pytest.raises(PlacementError, match="expected one of /GPU:0"):
    free.what_if({"head": "/GPU:7"})


@pytest.fixture(name="of_texts", scope="module")
def of_texts_fixture():
  """Rows that texts name, updated by Adagrad as Keras 3 does it, with plain ops."""
  with tf.Graph().as_default() as graph:
    texts = v1.placeholder(tf.string, [None], name="texts")
    ids = tf.strings.to_hash_bucket_fast(texts, 5000, name="hashed")
    table, slot = (v1.get_variable(name, [5000, 64], use_resource=True) for name in (
        "functional_1/item_embedding_2/table", "adagrad/slot"))
    rows, = tf.gradients(tf.reduce_mean(tf.nn.embedding_lookup(table, ids) ** 2), [table])
    squares = tf.raw_ops.ResourceScatterAdd(
        resource=slot.handle, indices=rows.indices, updates=rows.values ** 2)
    with tf.control_dependencies([squares]):
      root = tf.gather(tf.sqrt(slot.read_value(), name="root"), rows.indices)
    tf.raw_ops.ResourceScatterSub(
        resource=table.handle, indices=rows.indices, updates=rows.values / root, name="train")
  loaded = placeto.load_graph(graph, fetches=["train"], batch_size=256)
  return placeto.place(loaded, "v100:2", method="single")


def test_the_slots_and_updates_of_a_layer_follow_it_and_memory_is_told(of_texts):
  found = of_texts.what_if({"item_embedding": "/GPU:1"})
  assert {"functional_1/item_embedding_2/table", "adagrad/slot", "root"} <= set(found.moved)
  assert found.slots == ("adagrad/slot",) and "with 1 slot of their optimizer" in str(found)
  assert "GPU:1" in found.after.compute_us and "GPU:0" in found.before.compute_us
  before, after = found.peak_memory_bytes["GPU:1"]
  assert after - before >= 2 * 5000 * 64 * 4 and "memory: GPU:0 " in str(found)
  for wrong, said in (("item_embeding/.*", "scope alone, such as 'item_embedding'"),
                      (tf.keras.layers.Dense(1), "Dense.* expression .*; give a text")):
    with pytest.raises(PlacementError, match=said):
      of_texts.what_if({wrong: "/CPU:0"})


def test_ops_without_a_kernel_stay_and_are_told(of_texts):
  found = of_texts.what_if({".*": "/GPU:1"})
  assert "hashed" in found.stayed and "root" in found.moved
  assert "without a kernel there stay" in str(found)
  with pytest.raises(PlacementError, match="has no kernel on /GPU:1"):
    of_texts.what_if({"hashed": "/GPU:1"})


def test_a_report_says_what_if_the_largest_variables_were_elsewhere(free):
  first = report(free)["why"][0]
  assert first["op"] == "embedding/table"
  assert set(first["elsewhere"]) == set(free.cluster.device_names) - {first["device"]}
  text = "\n".join(why_lines(free, "embedding/table"))
  assert text.startswith("embedding/table is on GPU:")
  assert "All 1 on CPU:0: " in text


def test_a_step_of_small_kernels_is_said_to_be_too_small_for_several_devices():
  chains = [f"{chain}{i}" for chain in "ab" for i in range(20)]
  edges = [(k, 0, k + 1) for k in range(39) if k != 19]
  graph = ComputationGraph.from_edges(chains, ["Op"] * 40, [1] * 40, edges)
  place = np.repeat(np.array([0, 1], np.int32), 20)
  for compute_us, said in ((1.0, True), (100.0, False)):
    costs = OpCosts(np.full((40, 2), compute_us), np.zeros(40), np.zeros(40), np.zeros(40))

    def remark(cluster, placement, costs=costs):
      devices = placeto.Cluster.parse(cluster)
      step = Simulator(graph, costs, devices).simulate(placement)
      return small_step(explain(graph, step), devices)

    assert ("too small for several devices" in remark("v100:2", place)) == said
    # Also where the search found that one device is best; but not where there is one alone.
    assert bool(remark("v100:2", 0 * place)) == said
    assert not remark("v100:1", 0 * place)


def test_the_first_line_says_that_a_step_is_too_small_and_what_helps(small):
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [8, 8], name="x")
    for _ in range(10):
      x = tf.tanh(x)
  tiny = placeto.place(graph, "v100:4", **BUDGET)
  for text in (str(tiny), tables.table(tiny)):
    assert text.startswith("The step is too small for several devices: ")
    assert "a larger batch helps, or XLA instead of placing" in text.splitlines()[0]
  assert "too small for several devices" in repr(tiny)
  alone = placeto.place(small, "v100:1", **BUDGET)
  assert "too small" not in str(alone) + repr(alone)
  assert report(tiny)["small_step"] and not report(alone)["small_step"]


def test_costs_may_be_a_function_of_the_graph_and_the_cluster(small):
  def costs(graph, cluster):
    n, kinds = graph.num_ops, len(cluster.kind_devices)
    return OpCosts(np.full((n, kinds), 7.0), np.zeros(graph.num_outputs), np.zeros(n), np.zeros(n))

  result = placeto.place(small, "v100:2", cost_model=costs, **BUDGET)
  assert set(result.costs.compute_us.ravel()) == {7.0}
