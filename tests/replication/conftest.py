"""Training graphs at any batch, and the proof that replicas do the step of a larger batch."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import sessions
from training_models import mirrored_variables


class Trained:
  """What five steps of a graph give: the losses, and all variables by name.

  Attributes:
    copies: name of a variable -> its value in each replica, if each has its own.
  """

  def __init__(self, losses, variables, copies):
    self.losses, self.variables, self.copies = losses, variables, copies


def run(graph, init_op, feeds, fetches, steps=5):
  """Runs steps on a tf.Graph, as it stands: optimizing it takes longer than the steps.

  Args:
    graph: tf.Graph.
    init_op: name.
    feeds: step -> feed dict.
    fetches: (train op, loss tensor).
    steps: how many.
  """
  copies = mirrored_variables(graph)
  with tf.compat.v1.Session(graph=graph, config=sessions.unoptimized()) as session:
    session.run(init_op)
    losses = [session.run(list(fetches), feeds(step))[1] for step in range(steps)]
    variables = graph.get_collection("variables")
    return Trained(losses, {v.name: session.run(v) for v in variables}, session.run(copies))


def assert_equal(one, other, tolerance):
  """Losses and variables are equal, relative to the largest element of each."""
  np.testing.assert_allclose(one.losses, other.losses, rtol=tolerance)
  assert one.variables.keys() == other.variables.keys()
  for name, value in one.variables.items():
    scale = np.abs(value).max() or 1
    np.testing.assert_allclose(
        other.variables[name] / scale, value / scale, rtol=0, atol=tolerance, err_msg=name)


@pytest.fixture(scope="session")
def proof():
  """(build, inputs, replicas, dtype, mirrored=...) -> the replicas, or an AssertionError.

  `build(batch, dtype)` builds a training graph in the default graph and returns train op and loss;
  `inputs(batch, generator, dtype)` gives arrays by placeholder.
  """
  from placeto_tf.graphs import load_graph
  from placeto_tf.replication import replicate

  def built(build, size, dtype):
    with tf.Graph().as_default() as graph:
      tf.compat.v1.set_random_seed(3)
      train, loss = build(size, dtype)
      tf.compat.v1.global_variables_initializer()
    return graph, train.name, loss.name

  @functools.cache  # what is replicated is the same for all numbers of replicas
  def part(build, size, dtype):
    graph, train, loss = built(build, size, dtype)
    return load_graph(graph, fetches=[train, loss]), train, loss

  def prove(build, inputs, replicas, dtype="float64", batch=4, tolerance=None, mirrored=False,
            single=()):
    tolerance = tolerance or {"float64": 1e-10, "float32": 1e-5}[dtype]

    def arrays(step):
      return inputs(batch * replicas, np.random.default_rng(step), dtype)

    whole, train, loss = built(build, batch * replicas, dtype)
    expected = run(whole, "init", arrays, (train, loss))
    loaded, train, loss = part(build, batch, dtype)
    replicated = replicate(
        loaded, replicas, whole=load_graph(whole, fetches=[train, loss]), mirrored=mirrored,
        single=frozenset(single))
    # The variables' initial values are drawn by ops whose seeds follow from their places.
    found = run(
        replicated.graph.source.tf_graph, "init",
        lambda step: replicated.feed(arrays(step)), (train, loss))
    assert_equal(expected, found, tolerance)
    assert found.copies.keys() == (
        expected.variables.keys() - {f"{name}:0" for name in single} if mirrored else set())
    for name, values in found.copies.items():
      assert len(values) == replicas
      for value in values:
        np.testing.assert_array_equal(value, found.variables[name], err_msg=name)
    assert min(abs(a - b) for a, b in zip(found.losses, found.losses[1:])) > 0, "nothing learned"
    return replicated

  return prove
