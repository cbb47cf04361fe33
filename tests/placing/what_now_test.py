"""The README of a result directory runs what is there."""

import os
import re

import numpy as np
import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.placements import write_placed
from placeto_tf.placing import what_now


def _graph():
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
    weights = tf.compat.v1.get_variable("weights", [4, 2], initializer=tf.ones_initializer())
    tf.matmul(x, weights, name="y")
    tf.compat.v1.global_variables_initializer()
    meta_graph = tf.compat.v1.train.export_meta_graph(
        graph=graph, saver_def=tf.compat.v1.train.Saver().saver_def)
  return meta_graph


@pytest.mark.parametrize("kind", ["meta", "pb"])
def test_the_code_of_the_readme_runs_the_placed_graph(kind, tmp_path, monkeypatch):
  source = _graph() if kind == "meta" else _graph().graph_def
  graph = placeto.load_graph(source, fetches=["y:0"], batch_size=3)
  result = placeto.place(graph, "cpu:1", method="single", max_evaluations=5)
  write_placed(graph, result.placement, str(tmp_path))
  text = what_now.readme(graph, result.placement.devices)
  code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL).group(1)
  assert "'x:0': ...,  # [3, 4]" in code and "/CPU:0" in text
  # What a user fills in: the values, and where the variables come from.
  code = code.replace("...", "np.ones([3, 4])").replace(
      'saver.restore(session, "your/checkpoint")', 'session.run("init")').replace(
          "session.run(['y", "found = session.run(['y")
  if kind == "pb":
    code = code.replace("found =", "session.run('init'); found =")
  monkeypatch.chdir(tmp_path)
  scope = {"np": np}
  exec(compile(code, "README.md", "exec"), scope)  # as a reader would
  np.testing.assert_array_equal(scope["found"][0], np.full([3, 2], 4.0))


def test_the_last_two_lines_load_what_was_written(tmp_path):
  graph = placeto.load_graph(_graph(), fetches=["y:0"], batch_size=3)
  result = placeto.place(graph, "cpu:1", method="single", max_evaluations=5)
  write_placed(graph, result.placement, str(tmp_path))
  first, second = what_now.two_lines(graph, str(tmp_path)).splitlines()
  with tf.Graph().as_default():
    exec(first.partition("To run it: ")[2], {"tf": tf})
  assert "tensorboard --logdir=" in second and os.path.join(str(tmp_path), "README.md") in second
