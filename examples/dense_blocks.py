"""Writes dense_blocks.meta: 16 residual blocks of two dense layers, for a pipeline over slow links.

  python examples/dense_blocks.py
  python scripts/place.py --graph=dense_blocks.meta --batch_size=4096 --cluster=v100:1x4@10gbit \
      --replicas=auto --out=pipeline
"""

import tensorflow as tf

v1 = tf.compat.v1
graph = tf.Graph()
with graph.as_default():
  value = v1.placeholder(tf.float32, [None, 2048], name="x")
  for block in range(16):
    with v1.variable_scope(f"block_{block}"):
      inner = tf.nn.relu(tf.matmul(value, v1.get_variable("up", [2048, 8192])))
      value += tf.matmul(inner, v1.get_variable("down", [8192, 2048]))
  loss = tf.reduce_mean(tf.square(value), name="loss")
  v1.train.AdamOptimizer(1e-4).minimize(loss, name="train")
  v1.train.export_meta_graph("dense_blocks.meta")
