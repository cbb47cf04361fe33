"""However a program is started or ended, it places, or says why not, and leaves nothing behind."""

import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import pytest

import graph_files

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = [sys.executable, str(ROOT / "scripts" / "place.py"), "--cluster=k80:2"]


@pytest.fixture(name="graph", scope="module")
def graph_fixture(tmp_path_factory):
  import tensorflow as tf

  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [64, 64], name="x")
    tf.add(tf.matmul(x, x), tf.matmul(x, tf.nn.relu(x)), name="y")
  return graph_files.write(graph.as_graph_def(), tmp_path_factory.mktemp("graph") / "graph.pb")


def _shell(command, **options):
  return subprocess.run(
      ["bash", "-c", command], capture_output=True, text=True, timeout=900, check=False, **options)


def test_a_reader_that_leaves_ends_the_program_without_a_traceback(graph, tmp_path):
  out = tmp_path / "out"
  command = shlex.join([*PLACE, f"--graph={graph}", f"--out={out}", "--max_evaluations=5"])
  done = _shell(f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}")
  assert done.returncode in (0, 128 + signal.SIGPIPE)  # by who is faster
  assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
  assert (out / "placement.json").exists() and not list(out.glob(".partial*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_and_leaves_nothing(graph, tmp_path, number):
  out = tmp_path / "out"
  with subprocess.Popen(
      [*PLACE, f"--graph={graph}", f"--out={out}", "--method=random", "--max_seconds=300",
       "--max_evaluations=1000000000"],
      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as program:
    # Libraries that are being imported swallow what a handler raises; here all have been.
    while not list(out.glob(".partial*/tensorboard/*")):
      assert program.poll() is None, program.communicate()
      time.sleep(0.1)
    program.send_signal(number)
    said = program.communicate(timeout=900)[1]
  if number == signal.SIGINT:  # what was found so far is a result
    assert program.returncode in (0, 130)
  else:
    assert program.returncode == 128 + number and not os.path.exists(out)
  assert b"Traceback" not in said and not list(tmp_path.glob("out/.partial*"))
