"""Replicas beside the graph, over a table of constructs: equal, or refused with a reason.

Each is trained here, with sessions of the test, and if mirrored by `compare_training`, too.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
import training_constructs as constructs
from unhurried import compare_training

import sessions
from placeto_tf.errors import GraphError
from placeto_tf.replication.batches import ReplicaSource

v1 = tf.compat.v1

EXAMPLES, STEPS = 12, 4
STRATEGIES = ((2, False), (3, True), (3, False), (2, True))
NAMES = sorted(set(constructs.CONSTRUCTS) - set(constructs.REFUSED))
# One form of each construct every day, all of them with `-m heavy`.
CASES = [pytest.param(name, *strategy, marks=[] if (i + k) % 4 == 0 else [pytest.mark.heavy])
         for i, name in enumerate(NAMES) for k, strategy in enumerate(STRATEGIES)]


@functools.cache
def built(name):
  with tf.Graph().as_default() as graph:
    v1.set_random_seed(3)
    fetches = constructs.CONSTRUCTS[name]()
    variables = [*v1.global_variables(), *v1.local_variables()]
    v1.variables_initializer(variables, name="init_all")
  names = ["train", *dict.fromkeys(each.name for each in fetches)]
  return graph, names, [each.op.name for each in variables]


def examples(graph, step):
  """Feeds for the placeholders of a graph."""
  generator = np.random.default_rng(step)
  found = {}
  for op in graph.get_operations():
    if op.type == "Placeholder":
      shape = [EXAMPLES if size is None else size for size in op.outputs[0].shape.as_list()]
      dtype = op.outputs[0].dtype.as_numpy_dtype
      whole = np.issubdtype(dtype, np.integer)
      found[f"{op.name}:0"] = (
          generator.integers(0, 3 if op.name == "labels" else 11, size=shape) if whole else
          np.abs(generator.normal(size=shape)) if not shape else generator.normal(size=shape)
      ).astype(dtype)
  return found


def trained(graph, names, variables):
  """([steps][fetches], variable -> value) of a graph, from its own initial values."""
  reads = {}
  with graph.as_default(), tf.device(None):
    for name in variables:
      handle = graph.get_operation_by_name(name)
      reads[name] = handle.outputs[0] if handle.type != "VarHandleOp" else (
          tf.raw_ops.ReadVariableOp(
              resource=handle.outputs[0], dtype=handle.get_attr("dtype")))
  with v1.Session(graph=graph, config=sessions.unoptimized()) as session:
    session.run("init_all")
    return [session.run(names, examples(graph, step))[1:] for step in range(STEPS)], (
        session.run(reads))


@functools.cache
def of_the_graph(name):
  return trained(*built(name))


def replicated(name, replicas, mirrored, batch_norm="replica"):
  graph, names, _ = built(name)
  source = ReplicaSource(graph, {"fetches": names, "batch_size": EXAMPLES}, batch_norm=batch_norm)
  return source.graph, source.replicas(replicas, mirrored)


def assert_close(expected, found):
  difference = np.abs(np.asarray(expected, float) - np.asarray(found, float)).max()
  assert difference <= 2e-5 * (np.abs(np.asarray(expected, float)).max() or 1)


def prove(name, replicas, mirrored):
  graph, made = replicated(name, replicas, mirrored)
  if mirrored or name in constructs.SAMPLING:
    compared = compare_training(graph, made, STEPS)
    assert compared.checked and compared.steps == STEPS and compared.variables
    assert compared.largest_difference < 1e-4
  if name in constructs.SAMPLING:
    return
  assert bool(made.own_statistics) == (name in constructs.OWN)
  if name in constructs.OWN:
    _, made = replicated(name, replicas, mirrored, "synchronized")
  _, names, variables = built(name)
  fetched, values = of_the_graph(name)
  others, theirs = trained(made.graph.source.tf_graph, names, variables)
  for expected, found in zip(fetched, others):
    for one, other in zip(expected, found):
      assert_close(one, other)
  for each in variables:
    assert_close(values[each], theirs[each])


@pytest.mark.parametrize("name, replicas, mirrored", CASES)
def test_replicas_do_the_step_of_the_whole_batch(name, replicas, mirrored):
  prove(name, replicas, mirrored)


def test_the_table_is_large_enough():
  assert len(CASES) >= 150


@pytest.mark.parametrize("name", sorted(constructs.REFUSED))
@pytest.mark.parametrize("mirrored", (False, True))
def test_what_needs_the_examples_of_others_in_turn_is_refused(name, mirrored):
  with pytest.raises(GraphError, match=constructs.REFUSED[name]) as caught:
    replicated(name, 2, mirrored)
  assert "\n" not in str(caught.value)
