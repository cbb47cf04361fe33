"""A training graph whose layers are worth a pipeline on two slow devices."""

from placeto_tf.replication import ReplicaSource

LAYERS, WIDTH, BATCH = 6, 512, 4096


def training_graph(clip=False, branch=False, width=WIDTH):
  """Dense layers of one width; momentum."""
  import tensorflow as tf

  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    v1.set_random_seed(0)
    value = v1.placeholder(tf.float32, [None, width], name="x")
    for i in range(LAYERS):
      weights = v1.get_variable(f"w{i}", [width, width], use_resource=True)
      value = tf.nn.tanh(value @ weights)
    if branch:
      ahead, behind = tf.raw_ops.Switch(data=value, pred=tf.reduce_max(value) > 0)
      value = tf.raw_ops.Merge(inputs=[ahead, behind * 2.0])[0]
    loss = tf.reduce_mean(tf.square(value), name="loss")
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    if clip:
      gradients, _ = tf.clip_by_global_norm(gradients, 1e-3)
    optimizer.apply_gradients(zip(gradients, variables), name="train")
    v1.global_variables_initializer()
  return graph


def source(batch=BATCH, **options):
  return ReplicaSource(
      training_graph(**options), {"fetches": ["train", "loss:0"], "batch_size": batch})
