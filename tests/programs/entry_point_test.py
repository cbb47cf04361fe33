"""What a program makes of signals that a library turns into other errors."""

import os
import signal

import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.programs import entry_point

pytestmark = pytest.mark.usefixtures("signal_handlers_kept")


def _ended(monkeypatch, main):
  """The exit code of a program."""
  monkeypatch.setattr("sys.argv", ["program.py"])
  with pytest.raises(SystemExit) as exited:
    entry_point.run_program(main)
  return exited.value.code


@pytest.mark.parametrize("number, code, said", [
    (signal.SIGINT, 130, "program: interrupted"), (signal.SIGTERM, 143, "")])
@pytest.mark.parametrize("error", [ValueError("Error processing property"), PlacetoError("cut")])
def test_an_error_made_of_a_signal_ends_the_program_as_the_signal_does(
    monkeypatch, capsys, number, code, said, error):

  def main():
    try:
      os.kill(os.getpid(), number)
      for _ in range(1000):
        pass
    except BaseException as cause:
      raise error from cause

  assert _ended(monkeypatch, main) == code
  assert capsys.readouterr().err.strip() == said


def test_an_error_without_a_signal_stays_one(monkeypatch, capsys):

  def main():
    raise PlacetoError("a wrong value")

  assert _ended(monkeypatch, main) == 2
  assert capsys.readouterr().err.strip() == "program: a wrong value"


def test_a_late_interruption_does_not_cut_off_the_end(monkeypatch):
  monkeypatch.setattr("sys.argv", ["program.py"])
  with pytest.raises(SystemExit) as exited:
    entry_point.run_program(lambda: None)
  os.kill(os.getpid(), signal.SIGINT)
  assert not exited.value.code
