"""Specs of models and of families."""

import ast
import random

import pytest
import tensorflow as tf

import subprograms
from placeto_tf import zoo
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.zoo import enas, families, registry

_SMALL = "rnnlm:batch=2:layers=1:steps=2:hidden=4:vocab=11"


def test_options_that_a_spec_leaves_out_have_their_defaults():
  name, values = zoo.resolve("rnnlm:layers=4")
  assert name == "rnnlm"
  assert values == dict(
      batch=64, layers=4, steps=40, hidden=1024, vocab=10000, dropout=0, optimizer="momentum",
      seed=0)
  assert zoo.resolve("inception_v3")[1]["batch"] == 32


@pytest.mark.parametrize("spec, culprit, remedy", [
    ("rnnml", "'rnnml'", "rnnlm"),
    ("", "''", "inception_v3"),
    ("rnnlm:image=3", "'image=3'", "vocab"),
    ("rnnlm:layers", "'layers'", "key=value"),
    ("rnnlm:layers=2:layers=3", "'layers'", "once"),
    ("rnnlm:layers=0", "'0'", "at least 1"),
    ("rnnlm:dropout=100", "'100'", "from 0 to 99"),
    ("rnnlm:optimizer=lion", "'lion'", "momentum, rmsprop, adam, adagrad, sgd"),
    ("inception_v3:image=74", "'74'", "at least 75"),
])
def test_a_wrong_spec_is_refused_with_what_is_valid(spec, culprit, remedy):
  with pytest.raises(GraphError) as caught:
    zoo.build(spec)
  assert culprit in str(caught.value) and remedy in str(caught.value)


def test_two_builds_give_the_same_graph_and_another_seed_other_weights():
  first, second = zoo.build(_SMALL), zoo.build(_SMALL)
  assert first.graph is not second.graph
  assert first.graph.as_graph_def() == second.graph.as_graph_def()
  other = zoo.build(_SMALL + ":seed=1").graph.as_graph_def()
  assert [node.name for node in other.node] == [
      node.name for node in first.graph.as_graph_def().node]
  assert other != first.graph.as_graph_def()


def test_a_zoo_graph_names_what_is_needed_to_run_it():
  built = zoo.build(_SMALL)
  assert built.name == (
      "rnnlm:batch=2:dropout=0:hidden=4:layers=1:optimizer=momentum:seed=0:steps=2:vocab=11")
  assert zoo.build(built.name).name == built.name
  assert (built.train_op, built.loss, built.init_op) == ("train", "loss:0", "init")
  placeholders = {
      op.outputs[0].name: op.outputs[0].shape for op in built.graph.get_operations()
      if op.type == "Placeholder"}
  assert set(placeholders) == set(built.feeds)
  assert all(shape.is_fully_defined() for shape in placeholders.values())


def test_every_random_op_carries_its_own_seed():
  ops = zoo.build(_SMALL + ":dropout=10").graph.get_operations()
  seeds = [
      (op.get_attr("seed"), op.get_attr("seed2")) for op in ops
      if "seed2" in op.node_def.attr]
  assert len(seeds) == 7  # five variables, dropout in two steps
  assert len(set(seeds)) == len(seeds) and all(seed2 for _, seed2 in seeds)


def test_a_model_is_added_by_one_function(monkeypatch):
  monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

  @registry.model("line", slope=registry.integer(3))
  def line(slope):
    x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
    weight = tf.compat.v1.get_variable("weight", [2], use_resource=True)
    return registry.Model(loss=tf.reduce_sum(slope * weight * x), feeds=(x,))

  assert "line" in zoo.names()
  built = zoo.build("line:slope=4:optimizer=sgd")
  assert built.feeds == ("x:0",)
  assert "ResourceApplyGradientDescent" in {op.type for op in built.graph.get_operations()}


def test_a_slice_expands_to_its_graphs_and_other_specs_to_themselves():
  assert zoo.expand("family:ptb[2:4]") == ["family:ptb[2]", "family:ptb[3]"]
  assert zoo.expand("family:ptb[:2]") == ["family:ptb[0]", "family:ptb[1]"]
  assert zoo.expand("family:ptb[7]") == ["family:ptb[7]"]
  assert zoo.expand("zoo:rnnlm:layers=4") == ["zoo:rnnlm:layers=4"]


@pytest.mark.parametrize("spec, culprit", [
    ("family:cifar100[0]", "'cifar100'"),
    ("family:ptb", "family:ptb[3]"),
    ("family:ptb[4:4]", "ends after its start"),
    ("family:ptb[0:9999999]", "1000000"),
])
def test_a_wrong_family_is_refused_with_what_is_valid(spec, culprit):
  with pytest.raises(GraphError) as caught:
    zoo.expand(spec)
  assert culprit in str(caught.value)


@pytest.mark.parametrize("name", zoo.family_names())
def test_members_differ_and_each_is_a_spec_of_a_model(name):
  members = [families.member(spec) for spec in zoo.expand(f"family:{name}[0:32]")]
  assert len(set(members)) == 32
  for spec in members:
    assert zoo.resolve(spec)[0] in zoo.names()


def _structure(spec):
  """What a graph shares with those of other sizes: its cell, tables, or layers and steps."""
  model, options = zoo.resolve(families.member(spec))
  rng = random.Random(options.get("cell"))
  if model == "enas_conv":
    return tuple(tuple(enas._sample_conv_cell(rng, options["nodes"])) for _ in range(2))
  if model == "enas_recurrent":
    return tuple(enas._sample_recurrent_cell(rng, options["nodes"]))
  return tuple(options.get(each) for each in ("layers", "steps", "tables_seed"))


@pytest.mark.parametrize("name", zoo.family_names())
def test_members_kept_for_tests_share_no_structure_with_others(name):
  kept = {_structure(spec) for spec in zoo.expand(f"family:{name}[24:32]")}
  others = zoo.expand(f"family:{name}[0:24]") + zoo.expand(f"family:{name}[32:300]")
  assert len(kept) == 8
  assert not kept & set(map(_structure, others))


def test_a_member_is_the_same_in_every_process():
  specs = [f"family:{name}[5]" for name in zoo.family_names()]
  program = f"from placeto_tf.zoo import families\nprint([families.member(s) for s in {specs}])"
  printed = subprograms.python("-c", program).stdout
  assert ast.literal_eval(printed) == [families.member(spec) for spec in specs]


@pytest.mark.parametrize("name", zoo.family_names())
def test_members_have_the_size_that_policies_train_on(name):
  graph = load_graph(f"family:{name}[6]")
  assert 1000 <= graph.num_ops <= 4000
  assert graph.notes == ()
