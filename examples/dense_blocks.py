"""Writes dense_blocks.meta: residual blocks of two dense layers, for a pipeline over slow links.

  python examples/dense_blocks.py [BLOCKS WIDTH HIDDEN]
  python scripts/place.py --graph=dense_blocks.meta --batch_size=4096 --cluster=v100:1x4@10gbit \
      --replicas=auto --out=pipeline
"""

import sys

import tensorflow as tf

blocks, width, hidden = map(int, sys.argv[1:4] or (16, 2048, 8192))
v1 = tf.compat.v1
graph = tf.Graph()
with graph.as_default():
  value = v1.placeholder(tf.float32, [None, width], name="x")
  for block in range(blocks):
    with v1.variable_scope(f"block_{block}"):
      inner = tf.nn.relu(tf.matmul(value, v1.get_variable("up", [width, hidden])))
      value += tf.matmul(inner, v1.get_variable("down", [hidden, width]))
  loss = tf.reduce_mean(tf.square(value), name="loss")
  v1.train.AdamOptimizer(1e-4).minimize(loss, name="train")
  v1.train.export_meta_graph("dense_blocks.meta")
