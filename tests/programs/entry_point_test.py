"""How programs end, and what they show."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest

import subprograms
from placeto_tf.errors import FOR_A_SHELL, PlacetoError, option
from placeto_tf.programs import entry_point, shared_flags

pytestmark = pytest.mark.usefixtures("signal_handlers_kept")


def _ended(monkeypatch, main):
  """The exit code of a program."""
  monkeypatch.setattr("sys.argv", ["program.py"])
  monkeypatch.setenv(FOR_A_SHELL, "")  # set by the program, and put back after the test
  monkeypatch.setattr("sys.unraisablehook", sys.unraisablehook)
  with pytest.raises(SystemExit) as exited:
    entry_point.run_program(main)
  return exited.value.code


@pytest.mark.parametrize("number, code, said", [
    (signal.SIGINT, 130, "program: interrupted"), (signal.SIGTERM, 143, "")])
def test_a_signal_ends_the_program_after_it_has_tidied_up(monkeypatch, capsys, number, code, said):
  tidied = []

  def main():
    try:
      os.kill(os.getpid(), number)
      for _ in range(1000):
        pass
    finally:
      tidied.append(number)

  assert _ended(monkeypatch, main) == code and tidied == [number]
  assert capsys.readouterr().err.strip() == said


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_a_callback_swallows_is_raised_again(monkeypatch, number, code):

  @ctypes.CFUNCTYPE(None)
  def callback():
    os.kill(os.getpid(), number)
    for _ in range(1000):
      pass

  assert _ended(monkeypatch, lambda: (callback(), time.sleep(60))) == code


def test_an_error_without_a_signal_stays_one(monkeypatch, capsys):

  def main():
    raise PlacetoError(f"a wrong value; give {option('seed')}")

  assert _ended(monkeypatch, main) == 2
  assert capsys.readouterr().err.strip() == "program: a wrong value; give --seed=..."


@pytest.mark.parametrize("given, shown", [((), False), (("--verbosity=0",), True)])
def test_what_libraries_tell_is_shown_only_where_it_is_asked_for(given, shown):
  """In a process of its own: absl's handler and verbosity are the process's."""
  program = (
      "from absl import logging\n"
      "from placeto_tf.programs import entry_point\n"
      "entry_point.guarded.prepare = lambda: None\n"  # nothing is analysed
      "def main():\n"
      "  entry_point.import_tensorflow_quietly()\n"
      "  logging.info('sharding took a while')\n"
      "entry_point.run_program(main)\n")
  assert ("sharding took a while" in subprograms.python("-c", program, *given).stderr) == shown


@pytest.mark.parametrize("streams, code, said", [
    ("2>&-", 0, ""), ("2>/dev/full", 0, ""), (">&- 2>&- <&-", 0, ""),
    (">/dev/full", 2, "-c: a file or standard output cannot be written (No space left on device)")])
def test_a_program_does_its_work_whatever_its_streams_are(tmp_path, streams, code, said):
  program = (
      "import sys\n"
      "from placeto_tf.programs import entry_point\n"
      "entry_point.guarded.prepare = lambda: None\n"
      "def main():\n"
      "  print('progress', file=sys.stderr, flush=True)\n"
      "  entry_point.import_tensorflow_quietly()\n"
      "  open('done', 'w').close()\n"
      "  print('a table')\n"
      "entry_point.run_program(main)\n")
  done = subprocess.run(
      ["bash", "-c", f'"$0" -c "$1" {streams}', sys.executable, program], cwd=tmp_path,
      capture_output=True, text=True, check=False)
  assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr
  assert (tmp_path / "done").exists() and "Exception" not in done.stderr


def test_globs_become_files_and_families_their_members(tmp_path):
  for name in ("b.pb", "a.pb", "c.txt"):
    (tmp_path / name).write_text("")
  texts = ["zoo:bert:size=large", f"{tmp_path}/*.pb", "family:ptb[1:3]", "plain.pb"]
  assert shared_flags.expand_globs(texts) == (
      "zoo:bert:size=large", f"{tmp_path}/a.pb", f"{tmp_path}/b.pb", "family:ptb[1]",
      "family:ptb[2]", "plain.pb")


def test_sets_of_devices_are_read_from_json(tmp_path):
  path = tmp_path / "allowed.json"
  path.write_text('{"embedding/.*": ["/GPU:0", "/CPU:0"]}')
  assert shared_flags.allowed_sets(str(path)) == {"embedding/.*": ["/GPU:0", "/CPU:0"]}
  assert shared_flags.allowed_sets(None) == {}
  for wrong in ("[1]", "{", ""):
    path.write_text(wrong)
    with pytest.raises(PlacetoError, match=r"expected a JSON object such as \{"):
      shared_flags.allowed_sets(str(path))
