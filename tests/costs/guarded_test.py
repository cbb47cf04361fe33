"""Tests for placeto_tf.costs.guarded."""

import os
import signal

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


CRASH = r"""
import os, signal
os.write(2, b"I0000 fine so far\nF0000 tensor.cc:9] Check failed: 1 == 2\n")
os.kill(os.getpid(), signal.SIGABRT)"""
FAIL = "from placeto_tf.errors import CostError\nraise "


def _same(left, right):
  return (dict(left.estimates) == dict(right.estimates) and tuple(left.guessed) == tuple(
      right.guessed) and {k: list(v) for k, v in left.outputs.items()} == dict(right.outputs))


def test_the_answer_is_that_of_this_process(graph_def):
  assert _same(shape_analysis.analyse(graph_def), guarded.analyse(graph_def))


def test_a_crash_is_an_error_that_says_what_tensorflow_said(graph_def):
  with pytest.raises(CostError, match="SIGABRT: F0000 tensor.cc:9. Check failed: 1 == 2"):
    guarded.call(exec, 10.0, CRASH)
  assert guarded.analyse(graph_def).estimates  # by a new process


def test_a_hang_is_ended():
  with pytest.raises(CostError, match="stopped after 1 s of CPU time"):
    guarded.call(exec, 0.5, "while True: pass")


@pytest.mark.parametrize("silent_s, call", [  # suspended; without CPU time
    (0.3, "time.sleep(600)"), (600.0, "guarded._IDLE_S = 1; time.sleep(600)")])
def test_a_call_that_waits_for_ever_is_an_error(monkeypatch, silent_s, call):
  pid = guarded.call(os.getpid, 10.0)
  monkeypatch.setattr(guarded, "_SILENT_S", silent_s)
  with pytest.raises(CostError, match="waits for something that does not come"):
    guarded.call(exec, 0.0, f"import time; from placeto_tf.costs import guarded; {call}")
  monkeypatch.undo()
  assert guarded.call(os.getpid, 10.0) != pid  # a new process


def test_a_process_that_was_killed_is_replaced():
  pid = guarded.call(os.getpid, 10.0)
  os.kill(pid, signal.SIGKILL)
  guarded._process._process.wait()
  assert guarded.call(os.getpid, 10.0) not in (pid, os.getpid())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_a_process_of_its_own():
  pid = guarded.call(os.getpid, 10.0)
  assert guarded._process.is_running()
  child = os.fork()
  if not child:
    os._exit(guarded._process.is_running())
  assert os.waitpid(child, 0)[1] == 0 and guarded.call(os.getpid, 10.0) == pid


@pytest.mark.parametrize("error, shown", [
    ("CostError('no costs')", "^no costs$"),
    (r"ValueError('bad\nshape')", "ValueError: bad shape")])
def test_errors_come_back_as_errors_of_costs(error, shown):
  pid = guarded.call(os.getpid, 10.0)
  with pytest.raises(CostError, match=shown):
    guarded.call(exec, 10.0, FAIL + error)
  assert guarded.call(os.getpid, 10.0) == pid
