"""Places a training graph that is built here, and returns it with its devices set.

  scripts/with_env python examples/place_a_training_graph.py

The graph has two branches that do not depend on each other, which is what a second device is good
for. The GPUs are described, not present; the placed graph runs wherever such devices are.
"""

from __future__ import annotations

import collections
import os

# TensorFlow reads this at its first import. Learned methods need it; the method below does not.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf  # noqa: E402  after the environment is set

import placeto_tf as placeto  # noqa: E402


def training_graph() -> tf.Graph:
  """A graph of two wide branches, their loss, and an op "train" that updates all variables."""
  graph = tf.Graph()
  with graph.as_default():
    inputs = tf.compat.v1.placeholder(tf.float32, [None, 2048], name="inputs")
    branches = []
    for branch in range(2):
      hidden = inputs
      for layer in range(4):
        weights = tf.compat.v1.get_variable(f"weights_{branch}_{layer}", [2048, 2048])
        hidden = tf.nn.relu(tf.matmul(hidden, weights))
      branches.append(hidden)
    loss = tf.reduce_mean(tf.square(branches[0] - branches[1]), name="loss")
    tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, name="train")
  return graph


def main() -> None:
  """Places the graph on two K80s and says what that gains."""
  tf_graph = training_graph()
  graph = placeto.load_graph(tf_graph, fetches=["train"], batch_size=256)
  result = placeto.place(graph, "k80:2", "annealing", max_evaluations=500, seed=0)

  single_us = result.baselines["single"].step_time_us
  print(f"one device {single_us / 1000:.1f} ms, placed {result.step_time_us / 1000:.1f} ms "
        f"({single_us / result.step_time_us:.2f} times as fast)")

  placed = result.apply(tf_graph.as_graph_def())  # a copy with `node.device` set
  for device, ops in sorted(collections.Counter(node.device for node in placed.node).items()):
    print(f"{ops} ops on {device}")


if __name__ == "__main__":
  main()
