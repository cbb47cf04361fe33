"""Small training graphs, a function that trains, and the variables of replicas."""

import tensorflow as tf

v1 = tf.compat.v1
VARIABLES = ("VarHandleOp", "VariableV2")


def dense_graph(layers=3, width=64, batch=4, biases=False, clip=None, branch=False):
  """A step of dense layers with momentum; as it is, compute outweighs what is sent."""
  with tf.Graph().as_default() as graph:
    v1.set_random_seed(0)
    value = v1.placeholder(tf.float32, [batch, width], name="x")
    for i in range(layers):
      value = value @ v1.get_variable(f"w{i}", [width, width], use_resource=True)
      if biases:
        value += v1.get_variable(f"b{i}", [width], use_resource=True)
      value = tf.nn.tanh(value)
    if branch:
      ahead, behind = tf.raw_ops.Switch(data=value, pred=tf.reduce_max(value) > 0)
      value = tf.raw_ops.Merge(inputs=[ahead, behind * 2.0])[0]
    loss = tf.reduce_mean(tf.square(value), name="loss")
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    if clip is not None:
      gradients, _ = tf.clip_by_global_norm(gradients, clip)
    optimizer.apply_gradients(zip(gradients, variables), name="train")
    v1.global_variables_initializer()
  return graph


def function(weights, examples):
  """A ConcreteFunction of so many examples, or None, that trains weights, which must outlive it."""
  @tf.function
  def step(x):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(x @ weights)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss

  return step.get_concrete_function(tf.TensorSpec([examples, weights.shape[0]]))


def read(op):
  """The tensor of a variable's value, by its op."""
  return op.outputs[0] if op.type == "VariableV2" else tf.raw_ops.ReadVariableOp(
      resource=op.outputs[0], dtype=op.get_attr("dtype"))


def mirrored_variables(graph):
  """Name of a variable -> tensors of its value in each replica, the first one first.

  Variables that replicas share are left out. Ops that read variables are added to the graph.
  """
  found = {}
  for op in graph.get_operations():
    prefix, _, name = op.name.partition("/")
    if op.type in VARIABLES and prefix.startswith("replica_"):
      found.setdefault(f"{name}:0", [graph.get_operation_by_name(name)]).append(op)
  with graph.as_default():
    return {name: [read(op) for op in ops] for name, ops in found.items()}
