"""The registry beside TensorFlow: a whole batch and its slices, inputs times numbers, sums."""

import numpy as np
import pytest
from op_examples import NOT_ALONE, Examples

import sessions
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.variables import needed_by
from placeto_tf.ops import members, op_rule, registered, rule_of
from placeto_tf.replication.dataflow import analyse_dataflow
from placeto_tf.replication.propagation import propagate
from placeto_tf.replication.scaling import Scaling
from placeto_tf.replication.specs import LocalStatistic, Partial, Replicated, Sharded, Unknown

BATCH, REPLICAS = 3, 2
RUN_ALONE = sorted(name for name, rule in registered().items() if rule.axes and (
    name not in NOT_ALONE))
# What combines the replicas' values into the global one.
COMBINED = {"sum": np.sum, "max": np.max, "min": np.min, "all": np.all, "any": np.any}


class Built:
  """The examples at one batch: the graph, its analysis, a session."""

  def __init__(self, batch):
    import tensorflow as tf

    self.graph = tf.Graph()
    with self.graph.as_default():
      examples = Examples(batch)
      for name in RUN_ALONE:
        examples.add(name)
    self.ops = examples.ops
    outputs = [each.name for op in self.ops.values() for each in op.outputs]
    self.flow = analyse_dataflow(load_graph(self.graph.as_graph_def(), fetches=outputs))
    self.session = tf.compat.v1.Session(graph=self.graph, config=sessions.unoptimized())


@pytest.fixture(scope="module", name="built")
def built_fixture():
  """(a replica's batch, the global batch, the kinds of all tensors of a replica)."""
  part, whole = Built(BATCH), Built(BATCH * REPLICAS)
  yield part, whole, propagate(part.flow, [], Scaling(part.flow, whole.flow, REPLICAS))
  part.session.close()
  whole.session.close()


def numbers(tensor, seed):
  """Values for a placeholder that every example accepts; ids are below 4."""
  rng = np.random.default_rng(seed)
  shape = tensor.shape.as_list()
  dtype = tensor.dtype.base_dtype
  if dtype.is_floating:
    return rng.uniform(0.2, 0.8, shape)
  if dtype.is_complex:
    return rng.uniform(0.2, 0.8, shape) + 1j * rng.uniform(0.2, 0.8, shape)
  if dtype.is_bool:
    return rng.random(shape) < 0.7
  if dtype.is_integer:
    return rng.integers(1, 4, shape)
  return rng.choice([b"1", b"2"], shape)


def fed(op):
  """The placeholders that an op depends on."""
  found = [each.outputs[0] for each in needed_by([op]) if each.type == "Placeholder"]
  return sorted(found, key=lambda tensor: tensor.name)


def assert_equal(found, expected, message):
  if np.asarray(expected).dtype.kind in "OSU":
    np.testing.assert_array_equal(found, expected, err_msg=message)
  else:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5, err_msg=message)


@pytest.mark.parametrize("name", RUN_ALONE)
def test_slices_of_the_batch_give_what_the_rule_says(built, name):
  part, whole, found = built
  feeds = {tensor.name: numbers(tensor, i) for i, tensor in enumerate(fed(whole.ops[name]))}
  expected = whole.session.run(list(whole.ops[name].outputs), feeds)
  slices = [part.session.run(list(part.ops[name].outputs), {
      key: value[r * BATCH:(r + 1) * BATCH] for key, value in feeds.items()})
            for r in range(REPLICAS)]
  op = part.flow.graph.op_index[part.ops[name].name]
  assert op not in found.refused, found.refused[op]
  followed = 0
  for port, values in enumerate(zip(*slices)):
    kind = found.spec((op, port))
    factor = REPLICAS ** -getattr(kind, "exponent", 0.0)
    text = f"{name} output {port}: {kind}"
    if name.startswith("FusedBatchNorm") and port and "Grad" not in name:
      continue  # of no meaning without training
    if isinstance(kind, Sharded):
      value = joined(values, kind, BATCH)
    elif isinstance(kind, Partial):
      value = COMBINED[kind.how](values, axis=0)
    elif isinstance(kind, Replicated):
      value = values[0]
      assert_equal(values[1], value, text)
    else:
      assert isinstance(kind, LocalStatistic) and not isinstance(kind, Unknown), text
      continue
    followed += 1
    value = np.asarray(value)
    assert_equal(value if factor == 1 else value * factor, expected[port], text)
  assert followed


def joined(values, rows, batch):
  """The examples of all replicas: of an axis of outer * batch * inner, b is the batch."""
  apart = [np.moveaxis(np.asarray(value), rows.axis, 0) for value in values]
  apart = [value.reshape(max(rows.outer, 1), batch, -1, *value.shape[1:]) for value in apart]
  found = np.concatenate(apart, axis=1)
  return np.moveaxis(found.reshape(-1, *found.shape[3:]), 0, rows.axis)


def run(built, name, change=lambda i, value: value):
  """(inputs, outputs) of an op whose i-th input is changed."""
  op = built.ops[name]
  feeds = {tensor: numbers(tensor, i) for i, tensor in enumerate(fed(op))}
  inputs = built.session.run(list(op.inputs), feeds)
  changed = [change(i, np.asarray(value)) for i, value in enumerate(inputs)]
  return changed, built.session.run(
      [each for each in op.outputs if each.dtype.is_floating or each.dtype.is_complex or (
          each.dtype.is_bool)], dict(zip(op.inputs, changed)))


def times(factor, which):
  return lambda i, value: value * factor if i in which and value.dtype.kind in "fc" else value


@pytest.mark.parametrize("name", [
    name for name in RUN_ALONE if rule_of(name).scale is not None])
def test_results_scale_with_the_inputs_as_the_rule_says(built, name):
  part, scale = built[0], rule_of(name).scale
  inputs, plain = run(part, name)
  every = range(len(inputs))
  f = 2.0
  changed, power = {
      "factor": lambda: (members(scale.inputs, len(every)), scale.degree),
      "gradient": lambda: (members(scale.inputs, len(every)), 1.0),
      "alike": lambda: (members(scale.inputs, len(every)), scale.degree),
      "product": lambda: ([i for i in every if inputs[i].dtype.kind in "fc"],
                          sum(value.dtype.kind in "fc" for value in inputs)),
      "quotient": lambda: ([1], -1.0), "shape": lambda: (every, 0.0)}[scale.kind]()
  found = run(part, name, times(f, list(changed)))[1]
  for one, other in zip(plain, found):
    if np.asarray(one).dtype.kind in "fc":
      assert_equal(other, one * f ** power, name)
    elif scale.degree == 0:
      assert_equal(other, one, name)
    break  # statistics beside the result have scales of their own


@pytest.mark.parametrize("name", [
    name for name in RUN_ALONE if rule_of(name).linear is not None])
def test_an_op_is_linear_in_the_inputs_that_the_rule_names(built, name):
  part, linear = built[0], rule_of(name).linear
  inputs, plain = run(part, name)
  numeric = [i for i, value in enumerate(inputs) if value.dtype.kind in "fc"]
  groups = [[i] for i in numeric] if linear == "bilinear" else [
      [i for i in members(linear, len(inputs)) if i in numeric]]
  for group in groups:
    other = run(part, name, lambda i, value: value[::-1] if i in group and value.ndim else value)[1]  # noqa: B023
    both = run(part, name, lambda i, value: value + value[::-1] if i in group and value.ndim else (  # noqa: B023
        2 * value if i in group else value))[1]  # noqa: B023
    for one, two, sum_ in zip(plain, other, both):
      assert_equal(sum_, np.add(one, two), name)


@pytest.mark.parametrize("name", [name for name in RUN_ALONE if rule_of(name).passes])
def test_a_maximum_goes_through_where_the_rule_says(built, name):
  part = built[0]
  plain = run(part, name)[1]
  other = run(part, name, lambda i, value: value[::-1] if value.dtype.kind == "f" else value)[1]
  both = run(part, name, lambda i, value: (
      np.maximum(value, value[::-1]) if value.dtype.kind == "f" else value))[1]
  for one, two, largest in zip(plain, other, both):
    assert_equal(largest, np.maximum(one, two), name)


def test_a_rule_that_the_numbers_contradict_fails(built, monkeypatch):
  monkeypatch.setitem(op_rule._RULES, "Square", op_rule.OpRule(
      "elementwise", op_rule.Scale("factor", (0,)), linear=(0,)))
  with pytest.raises(AssertionError):
    test_results_scale_with_the_inputs_as_the_rule_says(built, "Square")
  with pytest.raises(AssertionError):
    test_an_op_is_linear_in_the_inputs_that_the_rule_names(built, "Square")


def test_a_fact_is_stated_once():
  with pytest.raises(ValueError, match="MatMul"):
    op_rule.register("MatMul", axes="elementwise")
