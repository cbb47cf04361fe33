import random
import sys

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf import zoo
from placeto_tf.zoo import image_models
from sessions import unoptimized

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def resnet():
  return zoo.build("resnet50:batch=2:image=32")


def test_batch_norm_trains_and_its_statistics_belong_to_the_step(resnet):
  ops = resnet.graph.get_operations()
  norms = [op for op in ops if op.type == "FusedBatchNormV3"]
  assert len(norms) == 53 and all(op.get_attr("is_training") for op in norms)
  needed = _needed(resnet)
  updates = [node for node in needed if node.op == "AssignSubVariableOp"]
  assert len(updates) == 2 * len(norms)
  assert sum(node.op == "ResourceApplyMomentum" for node in needed) == 214


def _needed(built):
  """The nodes behind the train op."""
  nodes = {node.name: node for node in built.graph.as_graph_def().node}
  found, stack = {}, [built.train_op]
  while stack:
    name = stack.pop()
    if name not in found:
      found[name] = nodes[name]
      stack += [text.lstrip("^").split(":")[0] for text in nodes[name].input]
  return list(found.values())


def test_fetching_the_loss_alone_changes_no_variable(resnet):
  rng = np.random.default_rng(0)
  feeds = {
      "images:0": rng.random((2, 32, 32, 3), np.float32), "labels:0": np.array([1, 2], np.int32)}
  with v1.Session(graph=resnet.graph, config=unoptimized()) as session:
    session.run(resnet.init_op)
    first = session.run(resnet.loss, feeds)
    assert session.run(resnet.loss, feeds) == first
    session.run(resnet.train_op, feeds)
    assert session.run(resnet.loss, feeds) != first


def test_builds_are_equal_also_after_keras_was_seeded_and_leave_its_seed_alone(resnet):
  utils = image_models.legacy_keras().utils
  before = random.getstate(), np.random.get_state()
  holder = sys.modules[f"{utils.__name__.split('.')[0]}.src.backend"]._SEED_GENERATOR
  generator = getattr(holder, "generator", None)
  try:
    utils.set_random_seed(1)
    again = zoo.build("resnet50:batch=2:image=32")
    assert again.graph.as_graph_def() == resnet.graph.as_graph_def()
    sampled = holder.generator.random()
    assert sampled == random.Random(1).random()
  finally:
    holder.generator = generator
    random.setstate(before[0])
    np.random.set_state(before[1])
