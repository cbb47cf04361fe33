"""A program that uses Ray ends in a sentence, however its process is ended."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

from placeto_tf.programs import ray_driver

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

PROGRAM = '''
import os, signal, sys, time
from absl import flags
from placeto_tf.errors import PlacetoError
from placeto_tf.graphs.result_directory import ResultDirectory
from placeto_tf.programs import entry_point, shared_flags

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the suite may ignore it
shared_flags.define_ray_flag()
flags.DEFINE_string("out", None, "Where results go.")

def main():
  with ResultDirectory(flags.FLAGS.out):
    print("begun", flush=True)
    os.write(2, b"[time C 1 2] what C++ says: Check failed\\n")
    {body}

entry_point.run_program(main)
'''


@pytest.fixture(name="start")
def start_fixture(tmp_path):
  started = []

  def start(body):
    (tmp_path / "program.py").write_text(PROGRAM.replace("{body}", textwrap.dedent(body)))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), "--ray=local", f"--out={tmp_path / 'out'}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)})
    started.append(process)
    return process

  yield start
  for process in started:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("body", ["os._exit(1)", "os.abort()", "os.kill(os.getpid(), 9)"])
def test_a_process_that_ray_ends_is_a_sentence_and_leaves_nothing(start, tmp_path, body):
  process = start(body)
  _, said = process.communicate(timeout=300)
  assert process.returncode == 2
  assert said.startswith("program: Ray ended this program while it was used")
  assert said.count("\n") == 1
  assert "Ray's words: [time C 1 2] what C++ says: Check failed" in said
  assert not (tmp_path / "out").exists() or not os.listdir(tmp_path / "out")


@pytest.mark.parametrize("body, code, said", [
    ("pass", 0, ""),
    ("raise PlacetoError('a wrong value')", 2, "program: a wrong value\n"),
    ("sys.exit(3)", 3, ""),
    ("print('a warning', file=sys.stderr)", 0, "a warning\n")])
def test_other_ends_are_as_without_ray(start, body, code, said):
  process = start(body)
  shown, errors = process.communicate(timeout=300)
  assert (process.returncode, shown, errors) == (code, "begun\n", said)


def test_an_error_of_the_program_shows_its_traceback(start):
  process = start("raise ValueError('a mistake')")
  _, errors = process.communicate(timeout=300)
  assert process.returncode == 1 and errors.count("ValueError: a mistake") == 1


@pytest.mark.parametrize("number, code, said", [
    (signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "program: interrupted\n")])
def test_signals_reach_the_program(start, tmp_path, number, code, said):
  process = start("time.sleep(600)")
  assert process.stdout.readline() == "begun\n"
  process.send_signal(number)
  _, errors = process.communicate(timeout=300)
  assert (process.returncode, errors) == (code, said)
  assert not (tmp_path / "out").exists()


def test_a_child_that_comes_up_after_its_parent_has_ended_does_nothing(tmp_path):
  (tmp_path / "program.py").write_text(PROGRAM.replace("{body}", "pass"))
  ended = subprocess.Popen([sys.executable, "-c", ""])
  ended.wait()
  done = subprocess.run(
      [sys.executable, str(tmp_path / "program.py"), "--ray=local", f"--out={tmp_path / 'out'}"],
      capture_output=True, text=True, timeout=300, check=False,
      env={**os.environ, "PYTHONPATH": str(ROOT), ray_driver._CHILD: f"{ended.pid},1,2"})
  assert done.returncode == 143 and not done.stdout and not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_the_program_ends_with_the_process_that_started_it(start, tmp_path):
  process = start("print(os.getpid(), flush=True); time.sleep(600)")
  assert process.stdout.readline() == "begun\n"
  process.stdout.readline()
  process.kill()
  process.wait()
  process.stdout.read()  # ends when the child has closed it
  assert not list((tmp_path / "out").glob(".partial-*"))
