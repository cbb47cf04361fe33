"""A builder of small training graphs that can put a fault at a chosen op."""

import pytest

import subprograms


class TrainingGraph:
  """y = x w + b, its loss, gradients and momentum updates, as a MetaGraphDef.

  `w` is a resource variable, `b` a reference variable; `x` is [?, 8].
  """

  def __init__(self):
    import tensorflow as tf

    v1 = tf.compat.v1
    self.graph = tf.Graph()
    with self.graph.as_default():
      x = v1.placeholder(tf.float32, [None, 8], name="x")
      w = v1.get_variable("w", [8, 4], use_resource=True)
      b = v1.get_variable("b", [4], use_resource=False)
      y = tf.add(tf.matmul(x, w), b, name="y")
      self.loss = tf.reduce_mean(y * y, name="loss")
      train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(self.loss, name="train")
      self.graph.add_to_collection("train_op", train)
      v1.global_variables_initializer()
      saver = v1.train.Saver()
      self.meta_graph = v1.train.export_meta_graph(saver_def=saver.saver_def)

  def node(self, name):
    """The NodeDef of that name in the MetaGraphDef, to put a fault in."""
    return next(node for node in self.meta_graph.graph_def.node if node.name == name)


@pytest.fixture
def training_graph():
  return TrainingGraph()


def cost_graph():
  """a -> b (output 1 of a), and a control edge b -> c; ids do not follow positions."""
  from tensorflow.core.framework import cost_graph_pb2

  proto = cost_graph_pb2.CostGraphDef()
  for name, node_id, outputs in (("c", 7, 1), ("a", 3, 2), ("b", 5, 1)):
    node = proto.node.add(name=name, id=node_id, device="/device:CPU:0", compute_cost=10)
    for _ in range(outputs):
      node.output_info.add(size=4, dtype=1)
  proto.node[2].input_info.add(preceding_node=3, preceding_port=1)
  proto.node[0].control_input.append(5)
  proto.node[0].is_final = True
  return proto


@pytest.fixture(name="cost_graph")
def cost_graph_fixture():
  return cost_graph()


@pytest.fixture(params=["2", "3"], ids=["keras_2", "keras_3"], name="keras")
def keras_fixture(request):
  """The legacy Keras, and Keras 3 where that is installed beside it."""
  if request.param == "3" and not subprograms.HAS_KERAS_3:
    pytest.skip("Keras 3 is not installed")
  return subprograms.the_keras(request.param)
