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
import training_models
from placeto_tf.errors import GraphError

v1 = tf.compat.v1

EXAMPLES, STEPS = 12, 4
STRATEGIES = ((2, False), (3, True), (3, False), (2, True))
NAMES = sorted(set(constructs.CONSTRUCTS) - set(constructs.REFUSED))
# One form of each construct every day, all of them with `-m heavy`.
CASES = [pytest.param(name, *strategy, marks=[] if (i + k) % 4 == 0 else [pytest.mark.heavy])
         for i, name in enumerate(NAMES) for k, strategy in enumerate(STRATEGIES)]


built = functools.cache(lambda name: constructs.source(name, EXAMPLES))


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


def trained(graph, fetches):
  """([steps][fetches], variable -> value) of a graph, from its own initial values.

  Where each replica has variables of its own, all are equal to the last bit.
  """
  with graph.as_default(), tf.device(None):
    reads = {op.name: training_models.read(op) for op in graph.get_operations()
             if op.type in training_models.VARIABLES and not op.name.startswith("replica_")}
    copies = training_models.mirrored_variables(graph)
  with v1.Session(graph=graph, config=sessions.unoptimized()) as session:
    session.run("init_all")
    fetched = [session.run(list(fetches), examples(graph, step))[1:] for step in range(STEPS)]
    values = session.run(reads)
    for name, (one, *others) in (session.run(copies) if copies else {}).items():
      for other in others:
        np.testing.assert_array_equal(other, one, err_msg=name)
    return fetched, values


@functools.cache
def of_the_graph(name):
  return trained(built(name).graph.source.tf_graph, built(name).graph.fetches)


def assert_close(expected, found):
  tolerance = 1e-10 if np.asarray(expected).dtype == np.float64 else 2e-5
  difference = np.abs(np.asarray(expected, float) - np.asarray(found, float)).max()
  assert difference <= tolerance * (np.abs(np.asarray(expected, float)).max() or 1)


@pytest.mark.parametrize("name, replicas, mirrored", CASES)
def test_replicas_do_the_step_of_the_whole_batch(name, replicas, mirrored):
  source, sampling = built(name), name in constructs.SAMPLING
  made = source.replicas(replicas, mirrored)
  if mirrored or sampling:
    compared = compare_training(source.graph, made, STEPS)
    assert compared.checked and compared.steps == STEPS and compared.variables
    assert compared.largest_difference < 1e-4
  assert bool(made.own_statistics) == (name in constructs.OWN)
  if name in constructs.OWN:
    made = constructs.source(name, EXAMPLES, batch_norm="synchronized").replicas(replicas, mirrored)
  others, theirs = trained(made.graph.source.tf_graph, source.graph.fetches)
  fetched, values = of_the_graph(name)
  assert values.keys() <= theirs.keys()
  for one, other in () if sampling else (
      *zip(sum(fetched, []), sum(others, [])), *((values[each], theirs[each]) for each in values)):
    assert_close(one, other)


def test_the_table_is_large_enough():
  assert len(CASES) >= 150


@pytest.mark.parametrize("name", sorted(constructs.REFUSED))
@pytest.mark.parametrize("mirrored", (False, True))
def test_what_needs_the_examples_of_others_in_turn_is_refused(name, mirrored):
  with pytest.raises(GraphError, match=constructs.REFUSED[name]) as caught:
    built(name).replicas(2, mirrored)
  assert "\n" not in str(caught.value)
