"""Starts and ends programs: TensorFlow's import, --help, errors and exit codes."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import tempfile
from typing import Any, Callable, List

from absl import app, flags, logging

from placeto_tf import collector
from placeto_tf.costs import guarded
from placeto_tf.errors import FOR_A_SHELL, PlacetoError
from placeto_tf.files import streams
from placeto_tf.programs import shared_flags

FLAGS = flags.FLAGS
_SCRIPT = re.compile(r"scripts/with_env python scripts/(\w+)\.py")
_MISSING = re.compile(r"Flag --(\w+) must have a value other than None")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def import_tensorflow_quietly() -> None:
  """Imports TensorFlow, and suppresses its output to stderr during the import.

  If the import fails, the output is shown. Warnings of TensorFlow and tf-agents, which would appear
  between lines of progress, are shown with --verbosity=-1 (warnings) or more.
  """
  sys.stderr.flush()
  # TensorFlow's C++ writes to descriptor 2 itself; sys.stderr would not hold that back.
  shown = os.dup(2)
  with tempfile.TemporaryFile() as held:
    # From here to the end of the import stderr goes to a file.
    os.dup2(held.fileno(), 2)
    try:
      guarded.prepare()
      with collector.no_collections():
        import tensorflow
    except BaseException:
      held.seek(0)
      os.write(shown, held.read())
      raise
    finally:
      os.dup2(shown, 2)
      os.close(shown)
  if "verbosity" in FLAGS and logging.get_verbosity() <= logging.ERROR:
    tensorflow.get_logger().setLevel("ERROR")


def _help(main: Callable[[], None]) -> str:
  """Returns the program's docstring and its flags; absl's own leaves out the shared ones."""
  text = (sys.modules[main.__module__].__doc__ or "").strip()
  if not sys.argv[0].endswith(".py"):  # installed, under its console name
    text = _SCRIPT.sub(r"placeto-\1", text)
  # Flags of absl and of libraries are left to --helpfull.
  return "\n".join([
      text, *map(FLAGS.module_help, (main.__module__, shared_flags.__name__)), "",
      "--flagfile=FILE reads flags from a file; --helpfull lists those of absl too."])


def _terminated(number: int, _: object) -> None:
  """Ends the program at Python's next instruction, with the same clean-up as Ctrl-C."""
  signal.signal(number, signal.SIG_DFL)  # the second one ends it at once
  sys.exit(128 + number)


def _raise_again(unraisable: Any) -> None:
  """Raises what a signal's handler raised once more, where a library's callback swallowed it."""
  def again(*_: object) -> None:
    raise unraisable.exc_value

  if not isinstance(unraisable.exc_value, (KeyboardInterrupt, SystemExit)):
    sys.__unraisablehook__(unraisable)
    return
  # Soon after this call, whose own exceptions are swallowed too.
  signal.signal(signal.SIGALRM, again)
  signal.setitimer(signal.ITIMER_REAL, 1e-4)


def _end(code: int) -> None:
  """Ends the program; discards output that a stream cannot take, which Python would flush again."""
  for stream in (sys.stdout, sys.stderr):
    try:
      stream.flush()
    except OSError:
      os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
  sys.exit(code)


def run_program(
    main: Callable[[], None], *, more_help: Callable[[], str] = lambda: "") -> None:
  """Runs `main`; a user's error ends in one sentence and exit code 2.

  Args:
    main: the program.
    more_help: gives the text of --help below the flags.
  """
  streams.open_streams()
  os.environ[FOR_A_SHELL] = "1"
  program = sys.argv[0].rpartition("/")[2]
  program = program[:-3] if program.endswith(".py") else program

  def fail(error: Exception) -> None:
    print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
    _end(2)

  def parse(argv: List[str]) -> List[str]:
    # Before absl, whose own help leaves out the shared flags.
    if {"--help", "-help", "-h", "-?"} & set(argv[1:]):
      print("\n\n".join(filter(None, (_help(main), more_help()))), flush=True)
      sys.exit(0)
    try:
      rest = FLAGS(argv)
    except flags.Error as error:
      # A required flag that is missing gets an example from its help.
      missing = _MISSING.search(str(error))
      raise PlacetoError(str(error) if missing is None else (
          f"--{missing[1]} is missing; expected --{missing[1]}=VALUE ({FLAGS[missing[1]].help})"
      )) from None
    if FLAGS["verbosity"].using_default_value:
      logging.set_verbosity(logging.ERROR)  # here, before absl takes the default for INFO
    if len(rest) > 1:
      raise PlacetoError(f"argument {rest[1]!r} was not understood; flags look like --name=value")
    return rest

  def run(_: object) -> None:
    main()
    sys.stdout.flush()  # here, where an error has a sentence

  for name in ("SIGTERM", "SIGHUP"):  # under nohup the second is ignored
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
      signal.signal(number, _terminated)
  sys.unraisablehook = _raise_again
  try:
    app.run(run, flags_parser=parse)
  except PlacetoError as error:
    fail(error)
  except BrokenPipeError:  # whoever read the output has left, as `head` does
    _end(128 + getattr(signal, "SIGPIPE", 13))
  except OSError as error:
    # A path that cannot be read or written is the user's to mend; anything else is a bug.
    if error.errno in _NO_SPACE:
      fail(PlacetoError(f"{error.filename or 'a file or standard output'} cannot be written "
                        f"({error.strerror}); make room, or choose another directory"))
    if error.filename is None:
      raise
    fail(PlacetoError(f"{error.filename}: {error.strerror}; check the path and its permissions"))
  except KeyboardInterrupt:
    print(f"{program}: interrupted", file=sys.stderr)
    sys.exit(130)
