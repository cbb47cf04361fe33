"""Programs run in forks of a process that has imported all they need: no second import each.

The process that forks runs no TensorFlow of its own: threads would not come along. Each fork has a
session of its own, its output in a file, and a directory of its own for temporary files, so that
what it leaves behind can be found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence

from absl import flags

_MARK = "PLACETO_TF_FORKED"  # an environment variable: who was started by which fork
_POLL_S = 0.01
_LISTENS = "0A"  # a state in /proc/net/tcp
SCRIPTS = str(pathlib.Path(__file__).resolve().parents[2] / "scripts")
# Where what benchmarks share is found, as their own folder is by them.
sys.path.append(os.path.join(SCRIPTS, "benchmarks"))
# A program's start, with the one family of small graphs that only mutants and kills have.
_ANEW = f"""
import runpy, sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import shortcuts
shortcuts.tiny_family()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_MODULES = (
    "tensorflow", "tensorboard.summary.writer.event_file_writer", "matplotlib.pyplot",
    "placeto_tf.evaluation.evaluate",
    "placeto_tf.evaluation.tables",
    "placeto_tf.placing.reports", "placeto_tf.placing.run", "placeto_tf.placing.summaries",
    "prediction_study_results")


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a program ended.

  Attributes:
    code: its exit code; below 0 the signal that ended it; None: it was ended for its time.
    said: all that it printed.
    seconds: that it took.
    cpu_s: of CPU time that it took.
    peak_kb: the most memory that it had at a time.
  """

  code: Optional[int]
  said: str
  seconds: float
  cpu_s: float
  peak_kb: int

  @property
  def last_line(self) -> str:
    """The last thing that it said."""
    return (self.said.strip().splitlines() or [""])[-1]

  @property
  def has_traceback(self) -> bool:
    """Whether it said what no user should see."""
    return "Traceback (most recent call last)" in self.said


def import_all(*more: str) -> None:
  """Imports what forks are to find there. Args: more: modules besides those of every program."""
  for name in (*_MODULES, *more):
    importlib.import_module(name)


class Program:
  """scripts/NAME.py, or a benchmark, at work in a fork.

  Attributes:
    pid: of the fork, which leads a session of its own.
    temporary: its directory for temporary files.
  """

  def __init__(
      self, scripts: str, command: Sequence[str], folder: str, *,
      prepare: Callable[[], None] = lambda: None, anew: bool = False):
    """Starts it.

    Args:
      scripts: the folder of the programs.
      command: its name and its flags.
      folder: an empty one for what it says and its temporary files.
      prepare: called in the fork, before the program is.
      anew: whether a new Python runs it, as when a user starts it.
    """
    path = next(map(str, pathlib.Path(scripts).glob(f"**/{command[0]}.py")))
    self._said = os.path.join(folder, "said")
    self.temporary = os.path.join(folder, "tmp")
    os.makedirs(self.temporary)
    self._began, self._mark = time.monotonic(), f"{os.getpid()}-{time.monotonic_ns()}"
    sys.stdout.flush()
    sys.stderr.flush()
    # The fork may be killed before it does anything.
    descriptor = os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # Nothing may be raised in the fork where it is still this program.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    self.pid = os.fork()
    if not self.pid:
      self._run(path, command[1:], prepare, anew, descriptor, unblocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    os.close(descriptor)

  def _run(
      self, path: str, arguments: Sequence[str], prepare: Callable[[], None], anew: bool,
      descriptor: int, unblocked: Collection[signal.Signals]) -> None:
    """What the fork does; never returns.

    `descriptor`: of the file for what it says; `unblocked`: the signals that are blocked in
    programs.
    """
    code, is_program = 1, False
    try:
      os.setsid()
      os.dup2(descriptor, 1)
      os.dup2(descriptor, 2)
      signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
      os.environ.update({"TMPDIR": self.temporary, _MARK: self._mark})
      tempfile.tempdir = None
      signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
      prepare()
      if anew:
        os.execv(sys.executable, [sys.executable, "-c", _ANEW, path, *arguments])
      run = _loaded(path, arguments)
      is_program = True
      run()
      code, is_program = 0, False
    except KeyboardInterrupt:
      # Before and after the program, Ctrl-C meets what is ours, and says nothing about it.
      code = code if code == 0 else 130
      if is_program:
        traceback.print_exc()
    except SystemExit as exited:
      code = exited.code if isinstance(exited.code, int) else 0 if exited.code is None else 1
    except BaseException:
      traceback.print_exc()
    finally:
      # What `atexit` knows of is the parent's, its temporary directories included.
      with contextlib.suppress(BaseException):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
      with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
      os._exit(code & 0xff)

  def wait(self, seconds: float) -> Optional[Ended]:
    """How it ended, or None where it goes on after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
      ended, status, usage = os.wait4(self.pid, os.WNOHANG)
      if ended:
        with open(self._said, encoding="utf-8", errors="replace") as file:
          return Ended(os.waitstatus_to_exitcode(status), file.read(),
                       time.monotonic() - self._began, usage.ru_utime + usage.ru_stime,
                       usage.ru_maxrss)
      if time.monotonic() >= deadline:
        return None
      try:
        time.sleep(_POLL_S)
      except KeyboardInterrupt:  # of a whole series, which leaves nothing behind
        self.send(signal.SIGKILL)
        raise

  def finish(self, limit_s: float) -> Ended:
    """How it ended; after `limit_s` it is ended."""
    ended = self.wait(limit_s)
    if ended is not None:
      return ended
    self.send(signal.SIGKILL)
    ended = self.wait(60.0)
    return Ended(None, ended.said if ended else "", time.monotonic() - self._began, 0.0, 0)

  def send(self, number: int) -> None:
    """Sends a signal to the program alone, as `kill` does."""
    os.kill(self.pid, number)

  def left(self) -> Dict[int, str]:
    """Process -> command line of those that it started, and that are still there."""
    found = {}
    for name in os.listdir("/proc"):
      if not name.isdecimal() or int(name) == self.pid:
        continue
      with contextlib.suppress(OSError, IndexError):
        with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
          fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/{name}/environ", "rb") as file:
          marked = f"{_MARK}={self._mark}".encode() in file.read().split(b"\0")
        if fields[0] not in "ZX" and (marked or int(fields[3]) == self.pid):
          with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as file:
            found[int(name)] = file.read().replace("\0", " ").strip()
    return found

  def listening(self) -> Dict[int, str]:
    """Socket -> "port P" of those that it, and what it started, listen on."""
    mine = set()
    for pid in (self.pid, *self.left()):
      with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
          with contextlib.suppress(OSError):
            mine.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {socket: port for socket, port in listening().items() if f"socket:[{socket}]" in mine}


def listening() -> Dict[int, str]:
  """Socket -> "port P" of all that listen on this machine."""
  found = {}
  for name in ("tcp", "tcp6"):
    with contextlib.suppress(OSError), open(f"/proc/net/{name}", encoding="ascii") as file:
      for fields in (line.split() for line in file.readlines()[1:]):
        if fields[3] == _LISTENS:
          found[int(fields[9])] = f"port {int(fields[1].rpartition(':')[2], 16)}"
  return found


def call(function: Callable[[], Any]) -> Any:
  """What a function returns in a fork, so that what it does leaves this process as it is.

  Raises:
    RuntimeError: it raised, or ended the fork.
  """
  with tempfile.TemporaryFile() as file:
    child = os.fork()
    if not child:
      try:
        pickle.dump(function(), file)
        file.flush()
        os._exit(0)
      except BaseException:
        traceback.print_exc()
      finally:
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if status:
      raise RuntimeError(f"a fork ended with {os.waitstatus_to_exitcode(status)}")
    file.seek(0)
    return pickle.load(file)  # of this process's own making


def settled(look: Callable[[], Dict[int, str]], seconds: float) -> Dict[int, str]:
  """What `look` finds, once that is nothing or so many seconds have passed."""
  deadline = time.monotonic() + seconds
  while True:
    found = look()
    if not found or time.monotonic() > deadline:
      return found
    time.sleep(_POLL_S)


def _loaded(path: str, arguments: Sequence[str]) -> Callable[[], None]:
  """What runs a program in this process, in which the flags of another one were parsed."""
  for module, defined in list(flags.FLAGS.flags_by_module_dict().items()):
    if module == sys.argv[0] or module.startswith(("__main__", "placeto_tf.")):
      for flag in list(defined):
        delattr(flags.FLAGS, flag.name)
  flags.FLAGS.unparse_flags()
  sys.modules.pop("placeto_tf.programs.shared_flags", None)
  sys.modules.pop("placeto_tf.programs.entry_point", None)
  spec = importlib.util.spec_from_file_location("program_in_a_fork", path)
  assert spec is not None and spec.loader is not None
  module_ = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module_
  spec.loader.exec_module(module_)
  sys.argv = [path, *arguments]
  return module_.run


def tree(folder: str, leave_out: Sequence[str] = ()) -> Dict[str, bytes]:
  """Path below a folder -> content of all regular files. Args: leave_out: parts of paths."""
  found = {}
  for directory, _, names in os.walk(folder):
    for name in names:
      path = os.path.join(directory, name)
      relative = os.path.relpath(path, folder)
      if os.path.isfile(path) and not os.path.islink(path) and not any(
          part in relative for part in leave_out):
        with open(path, "rb") as file:
          found[relative] = file.read()
  return found


def listing(folder: str) -> List[str]:
  """Paths of all files and directories below a folder, sorted."""
  return sorted(os.path.relpath(os.path.join(directory, name), folder)
                for directory, folders, names in os.walk(folder) for name in (*folders, *names))
