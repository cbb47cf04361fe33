"""Made-up strings: the ops that parse them take them, and their examples differ."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.graphs.feeds import random_feeds

v1 = tf.compat.v1
SPEC = {
    "ids": tf.io.VarLenFeature(tf.int64), "age": tf.io.FixedLenFeature([2, 2], tf.float32),
    "word": tf.io.FixedLenFeature([], tf.string), "image": tf.io.FixedLenFeature([], tf.string),
    "steps": tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
    "tags": tf.io.RaggedFeature(tf.int64)}


def example(lines):
  found = tf.io.parse_example(lines, SPEC)
  table = v1.get_variable("table", [7, 3])
  rows = tf.gather(table, tf.sparse.to_dense(found["ids"]))
  pixels = tf.stack([tf.io.decode_png(found["image"][i], 3) for i in range(4)])
  return [rows, found["age"], found["word"], pixels, found["steps"], found["tags"].flat_values]


def older_example(lines):
  found = v1.parse_example(lines, {key: SPEC[key] for key in ("ids", "age")})
  return [tf.sparse.to_dense(found["ids"]), found["age"]]


def single_example(lines):
  parsed = [tf.io.parse_single_example(lines[i], {"age": SPEC["age"]})["age"] for i in range(4)]
  return [tf.stack(parsed)]


def sequences(lines):
  context, steps, _ = tf.io.parse_sequence_example(
      lines, {key: SPEC[key] for key in ("ids", "age", "word")},
      {"walk": tf.io.FixedLenSequenceFeature([2], tf.float32), "tags": SPEC["tags"]})
  return [tf.sparse.to_dense(context["ids"]), context["age"], context["word"], steps["walk"]]


def single_sequence(lines):
  parsed = [tf.io.parse_single_sequence_example(
      lines[i], {"age": SPEC["age"]}, {"walk": tf.io.FixedLenSequenceFeature([2], tf.float32)})
            for i in range(4)]
  return [tf.stack([context["age"] for context, _ in parsed]),
          tf.stack([tf.reduce_sum(steps["walk"]) for _, steps in parsed])]


def looked_up(lines):
  fill = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b", "c", "d", "e"]), tf.range(5))
  return [tf.gather(v1.get_variable("table", [5, 3]), tf.lookup.StaticHashTable(fill, -1)[lines])]


@pytest.mark.parametrize("read", (
    example, older_example, single_example, sequences, single_sequence, looked_up,
    lambda lines: tf.io.decode_csv(lines, [[0.0], [0], [""]], field_delim=";"),
    lambda lines: [tf.reshape(tf.io.decode_raw(lines, tf.float32), [-1, 6])],
    lambda lines: [tf.strings.to_number(lines)],
    lambda lines: [tf.stack([tf.io.decode_jpeg(lines[i]) for i in range(4)])]))
def test_strings_are_what_the_op_takes_that_reads_them(read):
  with tf.Graph().as_default() as graph:
    lines = v1.placeholder(tf.string, [4], name="lines")
    found = read(tf.identity(lines))
    init = [v1.global_variables_initializer(), v1.tables_initializer()]
    with v1.Session() as session:
      session.run(init)
      feed = random_feeds(graph, {"lines:0": (4,)}, 1)
      values = session.run(found, feed)
  assert len(set(feed["lines:0"])) >= 3
  assert all(len(value) >= 4 and np.ptp([hash(each.tobytes() if hasattr(
      each, "tobytes") else each) for each in value]) for value in values)
