"""Recommenders with large tables: look-ups, their sums, and dense layers.

The sizes are the synthetic models of NVIDIA's distributed-embeddings (2022), for which step times
on A100s are published. Tables may also be sampled, any number of them.
"""

from __future__ import annotations

import random
from typing import Dict, Tuple

import tensorflow as tf

from placeto_tf.zoo import training
from placeto_tf.zoo.registry import Model, integer, model, word

# Size -> tables as (number, ids of an example for each input, rows, width); layers; numbers.
Tables = Tuple[Tuple[int, Tuple[int, ...], int, int], ...]
SIZES: Dict[str, Tuple[Tables, Tuple[int, ...], int]] = {
    "tiny": (
        ((1, (1, 10), 10_000, 8), (1, (1, 10), 1_000_000, 16), (1, (1, 10), 25_000_000, 16),
         (1, (1,), 25_000_000, 16), (16, (1,), 10, 8), (10, (1,), 1_000, 8), (4, (1,), 10_000, 8),
         (2, (1,), 100_000, 16), (19, (1,), 1_000_000, 16)), (256, 128), 10),
    "small": (
        ((5, (1, 30), 10_000, 16), (3, (1, 30), 4_000_000, 32), (1, (1, 30), 50_000_000, 32),
         (1, (1,), 50_000_000, 32), (30, (1,), 10, 16), (30, (1,), 1_000, 16),
         (5, (1,), 10_000, 16), (5, (1,), 100_000, 32), (27, (1,), 4_000_000, 32)),
        (512, 256, 128), 10),
    "medium": (
        ((20, (1, 50), 100_000, 64), (5, (1, 50), 10_000_000, 64), (1, (1, 50), 100_000_000, 128),
         (1, (1,), 100_000_000, 128), (80, (1,), 10, 32), (60, (1,), 1_000, 32),
         (80, (1,), 100_000, 64), (24, (1,), 200_000, 64), (40, (1,), 10_000_000, 64)),
        (1024, 512, 256, 128), 25)}


@model(
    "recommender", batch=integer(65_536), size=word(*SIZES), shrink=integer(1),
    tables=integer(0, minimum=0), tables_seed=integer(0, minimum=0),
    optimizer=word("adagrad", *(name for name in training.OPTIMIZERS if name != "adagrad")))
def recommender(batch: int, size: str, shrink: int, tables: int, tables_seed: int) -> Model:
  """Builds a recommender; a table with ids (1, 10) is shared by two inputs.

  Args:
    batch: examples of a step.
    size: one of `SIZES`.
    shrink: the number of rows of each table is divided by it; at least two are left.
    tables: so many tables are sampled instead of those of the size.
    tables_seed: of their rows, widths and ids.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  v1 = tf.compat.v1
  sized, layers, numbers = SIZES[size]
  feeds = [v1.placeholder(tf.float32, [batch, numbers], "numbers"),
           v1.placeholder(tf.float32, [batch, 1], "clicks")]
  found = [feeds[0]]  # each [batch, width]
  kinds = _sampled(tables, tables_seed) if tables else sized
  shapes = [each for each in kinds for _ in range(each[0])]
  for i, (_, hotness, rows, width) in enumerate(shapes):
    with v1.variable_scope(f"embedding_{i}"):
      table = v1.get_variable(
          "table", [max(2, rows // shrink), width], use_resource=True,
          initializer=v1.random_uniform_initializer(-0.05, 0.05))
      for count in hotness:
        ids = v1.placeholder(tf.int32, [batch, count], f"ids_{count}")
        feeds.append(ids)
        # [batch, count, width] -> [batch, width]
        found.append(tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1))
  outputs = tf.concat(found, axis=1)
  for i, units in enumerate((*layers, 1)):
    with v1.variable_scope(f"layer_{i}"):
      weights = v1.get_variable("weights", [outputs.shape[1], units], use_resource=True)
      biases = v1.get_variable(
          "biases", [units], use_resource=True, initializer=v1.zeros_initializer())
      outputs = tf.matmul(outputs, weights) + biases
      outputs = outputs if units == 1 else tf.nn.relu(outputs)
  loss = tf.reduce_mean(
      tf.nn.sigmoid_cross_entropy_with_logits(labels=feeds[1], logits=outputs), name="loss")
  return Model(loss=loss, feeds=tuple(feeds))


def _sampled(tables: int, seed: int) -> Tables:
  """Returns tables of 10 to 10 million rows; one in five has bags of up to 30 ids."""
  rng = random.Random(seed)
  return tuple(
      (1, (rng.randint(2, 30),) if rng.random() < 0.2 else (1,), round(10 ** rng.uniform(1, 7)),
       rng.choice((8, 16, 32, 64, 128))) for _ in range(tables))
