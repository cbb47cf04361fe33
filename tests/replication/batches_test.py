import numpy as np
import pytest
import tensorflow as tf
import training_constructs

from placeto_tf.errors import GraphError
from placeto_tf.replication import check_specs, load_replicas, load_with_replicas
from placeto_tf.replication.batches import ReplicaSource

SPEC = "zoo:rnnlm:layers=1:hidden=8:steps=2:vocab=16:batch=4"


def test_a_spec_that_names_replicas_is_read_as_these():
  whole, two = load_with_replicas(SPEC), load_with_replicas(f"{SPEC}:replicas=2")
  assert two.op_names == load_replicas(SPEC, 2).graph.op_names
  assert {"replica_0", "replica_1"} <= {name.partition("/")[0] for name in two.op_names}
  assert not any(name.startswith("replica_") for name in whole.op_names)


@pytest.mark.parametrize("spec, message", [
    ("zoo:rnnlm:replicas=0", "replicas is '0'"),
    ("zoo:rnnlm:layer=2", "'rnnlm' has no option 'layer=2'"),
    ("family:ptb[0:4]", "stands for 4 graphs"),
    ("zoo:resnet", "no model 'resnet'")])
def test_specs_are_checked_without_building_what_they_name(spec, message):
  with pytest.raises(GraphError, match=message):
    check_specs([SPEC, spec])
  check_specs([SPEC + ":replicas=2", "family:ptb[3]", "model.pb"])


@pytest.mark.parametrize("pairs", [
    lambda rows: tf.matmul(rows, rows, transpose_b=True) - tf.eye(16),
    lambda rows: tf.reshape(rows, [4, 12]) * tf.constant(np.ones([4, 12]), tf.float32)])
def test_a_batch_that_is_neither_divided_nor_grows_is_refused(pairs):
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [16, 5], name="x")
    rows = x @ training_constructs.variable("w", [5, 3])
    training_constructs.finish(tf.reduce_mean(tf.square(pairs(rows))))
  with pytest.raises(GraphError, match="baked into the graph.*leave the first dimension"):
    ReplicaSource(graph, {"fetches": ["train"]}).replicas(2)
