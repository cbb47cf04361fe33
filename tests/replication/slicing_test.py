"""Tables in slices train as whole tables; savers, also later ones, see whole tables."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.placing.run import place
from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.replication.slicing import sliced
from placeto_tf.runtime.checking import check_replicas
from placeto_tf.search.table_slices import choose_slices

v1 = tf.compat.v1
OPTIMIZERS = {
    "descent": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
}


def recommender(optimizer="adagrad", dense=False):
  """Returns a graph: a table with bags (sum, mean under a mask, sqrtn), and one of single ids."""
  with tf.Graph().as_default() as graph:
    v1.set_random_seed(1)
    bags = v1.placeholder(tf.int32, [None, 3], "bags")
    ids = v1.placeholder(tf.int32, [None], "ids")
    clicks = v1.placeholder(tf.float32, [None, 1], "clicks")
    items = v1.get_variable("items", [9, 8], use_resource=True)
    users = v1.get_variable("users", [5, 8], use_resource=True)
    rows = tf.nn.embedding_lookup(items, bags)  # [batch, 3, 8]; few rows, so that ids repeat
    mask = tf.cast(bags > 2, tf.float32)[:, :, None]
    found = [tf.reduce_sum(rows, 1), tf.reduce_sum(rows * mask, 1) / (tf.reduce_sum(mask, 1) + 1.0)]
    found.append(v1.nn.embedding_lookup_sparse(
        items, tf.sparse.from_dense(bags), None, combiner="sqrtn"))
    rising = tf.sin(tf.range(8.0)) > 0.0  # an op outside the step reads these, too
    tf.logical_and(rising, [True] * 8)
    user = tf.nn.embedding_lookup(users, ids)
    user = tf.where(rising, user, 0.5 * user)
    joined = tf.concat([*found, user, user * found[0]], 1)
    weights = v1.get_variable("weights", [40, 1], use_resource=True)
    loss = tf.reduce_mean(
        tf.math.squared_difference(tf.matmul(tf.tanh(joined), weights), clicks), name="loss")
    if dense:  # the gradient of the whole table
      loss += 0.01 * tf.nn.l2_loss(users)
    OPTIMIZERS[optimizer]().minimize(loss, name="train")
    v1.train.Saver()
  return graph


def loaded(**options):
  return load_graph(recommender(**options), fetches=["train", "loss:0"], batch_size=8)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_tables_in_slices_train_as_whole_ones(optimizer):
  source = ReplicaSource(loaded(optimizer=optimizer, dense=optimizer == "adam"))
  found = source.replicas(1, slices={"items": 4, "users": 2})
  assert found.strategy == "1 sliced"
  shapes = {node.name: [dim.size for dim in node.attr["shape"].shape.dim]
            for node in found.graph.origin.graph_def.node if node.op == "VarHandleOp"}
  assert shapes["slice_3/items"] == [9, 2] and "items" not in shapes
  # Slots are split with their table.
  assert all(shape[-1] < 8 for name, shape in shapes.items() if "items" in name or "users" in name)
  check = check_replicas(source, found, 600.0)
  assert check.checked and check.largest_difference < 1e-5, check


def test_replicas_share_tables_in_slices():
  source = ReplicaSource(loaded(optimizer="momentum"))
  found = source.replicas(2, slices={"items": 2})
  assert found.strategy == "2 sliced"
  assert check_replicas(source, found, 600.0).checked


def test_a_wrong_slice_is_found():
  source = ReplicaSource(loaded(optimizer="descent"))
  found = source.replicas(1, slices={"items": 2})
  # Exchange two slices in a concatenation.
  node = next(each for each in found.graph.origin.graph_def.node
              if each.name.startswith("all_gather/") and each.op == "ConcatV2")
  node.input[0], node.input[1] = node.input[1], node.input[0]
  from placeto_tf.errors import ReplicaMismatchError
  from placeto_tf.runtime.comparing import compare_training
  with pytest.raises(ReplicaMismatchError, match="sliced"):
    compare_training(source.graph, found)


def test_savers_write_and_restore_whole_tables(tmp_path):
  graph = recommender()
  loaded_graph = load_graph(graph, fetches=["train"], batch_size=8)
  parts = sliced(loaded_graph, {"items": 4})[0].origin.tf_graph
  whole, again, later = (str(tmp_path / name) for name in ("whole", "again", "later"))
  with v1.Session(graph=graph) as session:
    with graph.as_default():
      session.run(v1.global_variables_initializer())
    session.run("save/control_dependency:0", {"save/Const:0": whole})
  with v1.Session(graph=parts) as session:
    with parts.as_default():
      saver = v1.train.Saver()
      session.run(v1.global_variables_initializer())
    session.run("save/restore_all", {"save/Const:0": whole})
    session.run("save/control_dependency:0", {"save/Const:0": again})
    saver.save(session, later)
  one = tf.train.load_checkpoint(whole)
  for path in (again, later):
    other = tf.train.load_checkpoint(path)
    assert one.get_variable_to_shape_map() == other.get_variable_to_shape_map()
    for name in one.get_variable_to_shape_map():
      np.testing.assert_array_equal(one.get_tensor(name), other.get_tensor(name))


def test_a_table_in_the_way_is_split():
  graph = load_graph("zoo:recommender:size=tiny:shrink=1000")
  cluster = Cluster.parse("a100:8")
  from placeto_tf.costs import estimate_costs
  found = choose_slices(graph, estimate_costs(graph, cluster), cluster)
  assert set(found.values()) <= {2, 4, 8} and "embedding_2/table" in found
  assert choose_slices(graph, estimate_costs(graph, cluster), cluster, most=1) == {}


def test_place_tries_slices_and_names_them():
  found = place(loaded(), "cpu:2", slices=2, max_evaluations=60)
  assert found.replication.rows.keys() == {"1", "1 sliced"}
  assert found.replicated is None or found.replicated.strategy == "1 sliced"


@pytest.mark.parametrize("slices, said", [
    ({"weights": 2}, "no table.*items"), ({"items": 3}, "8 columns, which 3")])
def test_what_cannot_be_split_is_refused(slices, said):
  with pytest.raises(GraphError, match=said):
    sliced(loaded(), slices)
