"""What holds for every model that is written with plain ops: it trains, and always alike."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf import zoo
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.feeds import random_feeds
from sessions import unoptimized

v1 = tf.compat.v1

_SPECS = (
    "amoebanet:batch=2:cells=3:filters=16:image=32",
    "bert:batch=2:size=tiny:steps=16:vocab=40:dropout=10",
    "enas_conv:batch=4:image=8:cells=3:filters=8:nodes=4",
    "enas_recurrent:batch=4:steps=3:hidden=16:vocab=40",
    "gnmt:batch=2:layers=3:steps=3:hidden=8:vocab=30:dropout=10",
    "nmt:batch=3:layers=2:steps=3:hidden=5:vocab=11:dropout=30",
    "recommender:batch=4:shrink=1000000",
    "rnnlm:batch=3:layers=2:steps=3:hidden=5:vocab=11:dropout=30",
    "transformer_xl:batch=2:segment=6:memory=4:heads=2:width=8:inner=24:vocab=40:dropout=10",
    "wavenet:batch=2:layers=5:samples=20:channels=8:levels=16",
)


@functools.cache
def _build(spec):
  return zoo.build(spec)


def _losses(built, steps):
  tensors = map(built.graph.get_tensor_by_name, built.feeds)
  feeds = random_feeds(built.graph, {tensor.name: tensor.shape for tensor in tensors}, seed=0)
  with v1.Session(graph=built.graph, config=unoptimized()) as session:
    session.run(built.init_op)
    return [float(session.run([built.train_op, built.loss], feeds)[1]) for _ in range(steps)]


@pytest.mark.parametrize("spec", _SPECS)
def test_two_sessions_give_equal_losses_that_fall(spec):
  built = _build(spec)
  losses = _losses(built, 15)
  assert losses[:2] == _losses(built, 2)
  assert np.isfinite(losses).all()
  assert min(losses[-5:]) < losses[0]


@pytest.mark.parametrize("spec", _SPECS)
def test_every_variable_that_trains_is_updated(spec):
  built = _build(spec)
  updated = {op.inputs[0].op.name for op in built.graph.get_operations()
             if re.fullmatch("Resource(Sparse)?Apply(Momentum|Adagrad)", op.type)}
  trainable = {
      variable.op.name for variable in built.graph.get_collection("trainable_variables")}
  assert trainable - updated == set()


@pytest.mark.parametrize("spec", _SPECS)
def test_graphs_load_without_guesses(spec):
  assert load_graph(_build(spec).meta_graph_def()).notes == ()
