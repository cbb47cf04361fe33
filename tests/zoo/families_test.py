import ast
import random

import pytest

import subprograms
from placeto_tf import zoo
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.zoo import enas, families


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
def test_a_wrong_spec_is_refused_with_what_is_valid(spec, culprit):
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
  """What a graph shares with those of other sizes: its cell, or its layers and steps."""
  model, options = zoo.resolve(families.member(spec))
  rng = random.Random(options.get("cell"))
  if model == "enas_conv":
    return tuple(tuple(enas._sample_conv_cell(rng, options["nodes"])) for _ in range(2))
  if model == "enas_recurrent":
    return tuple(enas._sample_recurrent_cell(rng, options["nodes"]))
  return options["layers"], options["steps"]


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
