"""How a program starts and ends: TensorFlow's import, --help, errors and exit codes."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import tempfile
import threading
from typing import Callable, List

from absl import app, flags, logging

from placeto_tf import collector
from placeto_tf.costs import guarded
from placeto_tf.errors import PlacetoError
from placeto_tf.programs import shared_flags

FLAGS = flags.FLAGS
_SCRIPT = re.compile(r"scripts/with_env python scripts/(\w+)\.py")
_MISSING = re.compile(r"Flag --(\w+) must have a value other than None")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def import_tensorflow_quietly() -> None:
  """Imports TensorFlow, holding back what it writes to stderr before it can be told not to.

  An import that fails shows all of it. Warnings of TensorFlow and tf-agents, which would stand
  between lines of progress, are shown with --verbosity=-1 (warnings) or more.
  """
  sys.stderr.flush()
  # TensorFlow's C++ writes to descriptor 2 itself; sys.stderr would not hold that back.
  shown = os.dup(2)
  with tempfile.TemporaryFile() as held:
    # From here to the end of the import stderr goes to a file.
    os.dup2(held.fileno(), 2)
    try:
      with collector.no_collections():
        import tensorflow
      guarded.prepare()
    except BaseException:
      held.seek(0)
      os.write(shown, held.read())
      raise
    finally:
      os.dup2(shown, 2)
      os.close(shown)
  _end_if_signalled()  # an import may have caught what the signal's handler raised
  if "verbosity" in FLAGS and logging.get_verbosity() <= logging.ERROR:
    tensorflow.get_logger().setLevel("ERROR")


def _help(main: Callable[[], None]) -> str:
  """Returns the program's docstring and its flags; absl's own leaves out the shared ones."""
  program = sys.modules[main.__module__]
  text = (program.__doc__ or "").strip()
  if not sys.argv[0].endswith(".py"):  # installed, under its console name
    text = _SCRIPT.sub(r"placeto-\1", text)
  sections = [text, "", "Flags:"]
  # Flags of absl and of libraries are left to --helpfull.
  modules = (sys.argv[0], main.__module__, shared_flags.__name__)
  for name, defined in FLAGS.flags_by_module_dict().items():
    if name in modules:
      for flag in sorted(defined, key=lambda flag: flag.name):
        default = "" if flag.value is None else f" (default: {flag.default_as_str})"
        sections.append(flags.text_wrap(
            f"--{flag.name}: {flag.help}{default}", length=100, indent="      ",
            firstline_indent="  "))
  sections += ["", "--flagfile=FILE reads flags from a file; --helpfull lists those of absl too."]
  return "\n".join(sections)


def _show(text: str) -> None:
  """Prints to a reader who may leave before the end, such as `head`."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    _forget_readers()


def _forget_readers() -> None:
  """Discards all later output; Python flushes once more when it ends."""
  nowhere = os.open(os.devnull, os.O_WRONLY)
  for stream in (sys.stdout, sys.stderr):
    try:
      stream.flush()
    except BrokenPipeError:
      os.dup2(nowhere, stream.fileno())


def _open_streams() -> None:
  """Gives a program that was started without stdin, stdout or stderr (`2>&-`) empty ones.

  Otherwise the next file that is opened would take the place of one, and be written to.
  """
  while True:
    descriptor = os.open(os.devnull, os.O_RDWR)
    # The lowest free descriptor is taken: above 2 all three streams are open.
    if descriptor > 2:
      os.close(descriptor)
      break
    os.set_inheritable(descriptor, True)
  for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
    if getattr(sys, name) is None:
      setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))


_received: List[int] = []  # signals that are to end the program


def _terminated(number: int, _: object) -> None:
  """Ends the program at the next step of Python."""
  signal.signal(number, signal.SIG_DFL)  # the second one ends it at once
  _received.append(number)
  sys.exit(128 + number)


def _interrupted(number: int, _: object) -> None:
  """Remembers a Ctrl-C, and raises it."""
  _received.append(number)
  raise KeyboardInterrupt


def _end_if_signalled() -> None:
  """Ends the program, if a signal that came before now was to."""
  if _received:
    if _received[0] == signal.SIGINT:
      raise KeyboardInterrupt
    sys.exit(128 + _received[0])


def _hear_signals() -> None:
  """Has signals tidy up as Ctrl-C does: workers, temporary directories, results."""
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGTERM, _terminated)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
      signal.signal(signal.SIGHUP, _terminated)  # the terminal is gone; under nohup it is ignored
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored
      signal.signal(signal.SIGINT, _interrupted)


def _finish_undisturbed() -> None:
  """Ignores a late Ctrl-C, which would only cut off the tidying up, with a traceback."""
  if signal.getsignal(signal.SIGINT) is _interrupted:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_program(
    main: Callable[[], None], *, more_help: Callable[[], str] = lambda: "") -> None:
  """Runs `main`; a user's error ends in one sentence and exit code 2.

  Args:
    main: the program.
    more_help: gives the text of --help below the flags.
  """
  _open_streams()
  program = sys.argv[0].rpartition("/")[2]
  program = program[:-3] if program.endswith(".py") else program

  def fail(error: Exception) -> None:
    print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)

  def parse(argv: List[str]) -> List[str]:
    # Before absl, whose own help leaves out the shared flags.
    if {"--help", "-help", "-h", "-?"} & set(argv[1:]):
      _show("\n\n".join(filter(None, (_help(main), more_help()))))
      sys.exit(0)
    try:
      rest = FLAGS(argv)
    except flags.Error as error:
      # A required flag that is missing gets an example from its help.
      missing = _MISSING.search(str(error))
      if missing is None:
        fail(error)
      else:
        fail(PlacetoError(f"--{missing[1]} is missing; expected --{missing[1]}=VALUE "
                          f"({FLAGS[missing[1]].help})"))
    if FLAGS["verbosity"].using_default_value:
      logging.set_verbosity(logging.ERROR)  # here, before absl takes the default for INFO
    if len(rest) > 1:
      fail(PlacetoError(f"argument {rest[1]!r} was not understood; flags look like --name=value"))
    return rest

  def interrupted() -> None:
    print(f"{program}: interrupted", file=sys.stderr)
    sys.exit(130)

  def ended_well(_: List[str]) -> None:
    _received.clear()
    try:
      # Signals first, so that an early one tidies up, too.
      _hear_signals()
      try:
        main()
        _finish_undisturbed()
      except Exception:
        # TensorFlow turns what a signal's handler raises in some of its loops into other errors.
        _end_if_signalled()
        raise
    except PlacetoError as error:
      fail(error)
    except BrokenPipeError:  # whoever read the output has left, as `head` does
      _forget_readers()
      sys.exit(128 + getattr(signal, "SIGPIPE", 13))
    except OSError as error:
      # A path that cannot be read or written is the user's to mend; anything else is a bug.
      if error.errno in _NO_ROOM:
        fail(PlacetoError(f"{error.filename or 'a file'} cannot be written ({error.strerror}); "
                          "make room, or choose another directory"))
      if error.filename is None:
        raise
      fail(PlacetoError(f"{error.filename}: {error.strerror}; check the path and its permissions"))
    except KeyboardInterrupt:
      interrupted()

  try:
    app.run(ended_well, flags_parser=parse)
  except KeyboardInterrupt:  # before main began, or after it ended
    interrupted()
