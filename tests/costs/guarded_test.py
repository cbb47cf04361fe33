import os
import signal
import subprocess
import sys
import time

import pytest

from placeto_tf import graphs
from placeto_tf.costs import guarded, shape_analysis
from placeto_tf.errors import CostError


@pytest.fixture(name="graph_def")
def graph_def_fixture():
  import tensorflow as tf

  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [4, 8], name="x")
    tf.tanh(tf.matmul(x, tf.ones([8, 3])), name="y")
  return graphs.analysis_graph_def(graphs.load_graph(graph))


@pytest.fixture(name="analysed_by")
def analysed_by_fixture(monkeypatch):
  """Has a fork of this process analyse, by the function that a test gives."""

  def set_function(function):
    monkeypatch.setattr(shape_analysis, "analyse", function)
    guarded.prepare()

  monkeypatch.setattr(guarded.threading, "active_count", lambda: 1)  # pytest-xdist has one
  yield set_function
  guarded._close()


def _same(left, right):
  return (dict(left.estimates) == dict(right.estimates) and tuple(left.guessed) == tuple(
      right.guessed) and {k: list(v) for k, v in left.outputs.items()} == dict(right.outputs))


def test_the_answer_is_that_of_this_process(graph_def):
  assert _same(shape_analysis.analyse(graph_def), guarded.analyse(graph_def))


def test_a_crash_is_an_error_that_says_what_tensorflow_said(graph_def, analysed_by):
  def crash(*_, **__):
    os.write(2, b"I0000 fine so far\nF0000 tensor.cc:9] Check failed: 1 == 2\n")
    os.kill(os.getpid(), signal.SIGABRT)

  analysed_by(crash)
  with pytest.raises(CostError, match="SIGABRT: F0000 tensor.cc:9. Check failed: 1 == 2"):
    guarded.analyse(graph_def)
  assert guarded.analyse(graph_def).estimates  # by a new process


def test_a_hang_is_ended(graph_def, monkeypatch, analysed_by):
  def spin(*_, **__):
    while True:
      pass

  analysed_by(spin)
  monkeypatch.setattr(guarded, "_LIMIT_S", 0.5)
  with pytest.raises(CostError, match="stopped after 1 s of CPU time"):
    guarded.analyse(graph_def)


def test_an_analysis_that_waits_for_ever_is_an_error(graph_def, monkeypatch, analysed_by):
  expected = shape_analysis.analyse(graph_def)
  analysed_by(lambda *_, **__: time.sleep(600))
  monkeypatch.setattr(guarded, "_LIMIT_S", 0.0)
  monkeypatch.setattr(guarded, "_SILENT_S", 0.3)
  with pytest.raises(CostError, match="waits for something that does not come"):
    guarded.analyse(graph_def)
  monkeypatch.undo()
  assert _same(expected, guarded.analyse(graph_def))  # by a new process


def test_a_server_that_was_killed_is_replaced(graph_def, analysed_by):
  expected = shape_analysis.analyse(graph_def)
  analysed_by(shape_analysis.analyse)
  os.kill(guarded._server._pid, signal.SIGKILL)
  assert _same(expected, guarded.analyse(graph_def))


# A parent that is killed while its fork waits; the fork holds the pipe to stdout open.
ORPHAN = """
import os, signal, time
from placeto_tf.costs import analysis_server
parent = os.getpid()
if not os.fork():
  analysis_server.end_with(parent)
  os.write(1, b"forked")
  os.kill(parent, signal.SIGKILL)
  time.sleep(600)
time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_a_fork_ends_with_its_parent_whatever_that_dies_of():
  done = subprocess.run(
      [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, timeout=300, check=False,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
  assert done.stdout == b"forked" and done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("error, shown", [
    (CostError("no costs"), "^no costs$"), (ValueError("bad\nshape"), "ValueError: bad shape")])
def test_errors_come_back_as_errors_of_costs(graph_def, analysed_by, error, shown):
  def fail(*_, **__):
    raise error

  analysed_by(fail)
  with pytest.raises(CostError, match=shown):
    guarded.analyse(graph_def)
