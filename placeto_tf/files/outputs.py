"""Writes result files and directories completely or not at all, and never over a user's files.

A file is written under another name in the same directory, and renamed. A run writes its results to
a directory inside `--out`, `.partial-ID`, until all of them are complete, and then renames each.
`.results.json` lists what runs wrote, with digests ("size:SHA-256"):

  {"version": 1, "files": {"report.json": "1234:...", "saved_model/...": "..."}}

A file that is in the list and unchanged is replaced. Any other file of the same name is an error,
before the search begins and again before any file is renamed. Files of other names are kept. A
killed run leaves its `.partial-ID`; a run that is killed between two renames leaves files that are
not in the list, and the next run reports them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import secrets
import shutil
import stat
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Type, TypeVar

from placeto_tf.errors import PlacementError, PlacetoError, SetupError
from placeto_tf.files import user_files

MANIFEST = ".results.json"
_PARTIAL = ".partial-"
_REMEDY = "move it away or choose another directory"

_Self = TypeVar("_Self", bound="ResultDirectory")


def write(
    path: str, content: bytes, *, what: str = "", error_type: Type[PlacetoError] = PlacementError
) -> None:
  """Writes a temporary file and renames it to `path`, so that no reader sees a partial file.

  Args:
    path: the file.
    content: its content.
    what: the kind of file, such as "the cluster file ", for the error.
    error_type: raised where the file cannot be written.

  Raises:
    error_type: the file cannot be written.
  """
  temporary = f"{path}.{secrets.token_hex(8)}"
  try:
    try:
      with open(temporary, "xb") as file:
        file.write(content)
      os.replace(temporary, path)
    except BaseException:
      with contextlib.suppress(OSError):
        os.unlink(temporary)
      raise
  except OSError as error:
    raise error_type(
        f"cannot write {what}{path!r} ({error.strerror}); give a path in a folder that can be "
        "written to") from None


def write_json(path: str, content: Any, **options: Any) -> None:
  """Writes an indented JSON file as `write` does.

  Args:
    path: the file.
    content: JSON-able.
    options: of `write`.

  Raises:
    PlacetoError: the file cannot be written.
  """
  write(path, (json.dumps(content, indent=1) + "\n").encode("utf-8"), **options)


def plain(value: Any) -> Any:
  """Returns a value as JSON has it; records as objects, without placements.

  NumPy's numbers become Python's, and numbers that are not finite become null.
  """
  if dataclasses.is_dataclass(value):
    value = {name: item for name, item in vars(value).items() if name != "placement"}
  if isinstance(value, Mapping):
    return {key: plain(item) for key, item in value.items()}
  value = value.tolist() if hasattr(value, "tolist") else value
  if isinstance(value, (list, tuple)):
    return [plain(item) for item in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


class ResultDirectory:
  """The results of one run, which are moved into a directory when all are complete.

  Attributes:
    path: the directory that the run writes to.
  """

  def __init__(self, out: str, inputs: Sequence[str] = ()):
    """Checks that the directory can be written.

    Args:
      out: the directory.
      inputs: files that the run reads, which are never overwritten.
    """
    self.out = check(out)
    self._inputs = [os.path.realpath(path) for path in inputs if path and os.path.exists(path)]
    self.path = ""
    self._kept = False
    self._made: List[str] = []

  def __enter__(self: _Self) -> _Self:
    """Makes the directory.

    Raises:
      PlacetoError: it cannot be written.
    """
    for path in self._inputs:
      if os.path.isdir(path) and os.path.commonpath([path, os.path.realpath(self.out)]) == path:
        raise PlacetoError(f"the results would be written into the input {path!r}; choose a "
                           "directory outside")
    # Directories that are made here are removed again if the run fails.
    try:
      missing = self.out
      while not os.path.isdir(missing):
        self._made.append(missing)
        missing = os.path.dirname(missing)
      os.makedirs(self.out, exist_ok=True)
      self.path = os.path.join(self.out, _PARTIAL + secrets.token_hex(8))
      os.mkdir(self.path)
    except OSError as error:
      self.__exit__()
      raise PlacetoError(f"cannot write to {self.out!r} ({error.strerror}); choose a directory "
                         "that you may write to") from None
    return self

  def __exit__(self, *_: object) -> None:
    if self.path and not self._kept:
      shutil.rmtree(self.path, ignore_errors=True)
    for path in self._made:  # the run failed, and left them empty
      with contextlib.suppress(OSError):
        os.rmdir(path)

  def claim(self, names: Sequence[str]) -> None:
    """Checks that results of these names can be written.

    Raises:
      PlacetoError: a file of such a name was not written by an earlier run, was changed since, or
        is an input of this run.
    """
    # Names in the list may be replaced if their content is as the list says.
    known = _read_list(self.out)
    for name in names:
      reason = self._why_kept(name, known)
      if reason:
        raise PlacetoError(reason)

  def publish(self) -> None:
    """Renames the results, and removes those of earlier runs that are not replaced.

    Raises:
      PlacetoError: they cannot be renamed; they are kept, and the message names their directory.
    """
    names = sorted(os.listdir(self.path))
    try:
      self.claim(names)
      known = _read_list(self.out)
      new = {relative: _digest(os.path.join(self.path, relative))
             for name in names for relative in _files(self.path, name)}
      # Results of an earlier run that this one does not have, unchanged since.
      gone = [name for name in os.listdir(self.out) if name not in names and any(
          relative.partition("/")[0] == name for relative in known) and not (
              self._why_kept(name, known))]
      for name in (*gone, *names):
        target = os.path.join(self.out, name)
        if os.path.isdir(target):
          shutil.rmtree(target)
        elif os.path.lexists(target):
          os.unlink(target)
        if name in names:
          os.rename(os.path.join(self.path, name), target)
      write_json(os.path.join(self.out, MANIFEST), {"version": 1, "files": new})
    except (OSError, PlacetoError) as error:
      self._kept = True
      reason = getattr(error, "strerror", None) or str(error)
      raise PlacetoError(
          f"the results could not be moved into {self.out!r} and are in {self.path!r} ({reason})"
      ) from None

  def _why_kept(self, name: str, known: Dict[str, str]) -> str:
    """Returns the reason why the files of this name may not be replaced, or ""."""
    path = os.path.join(self.out, name)
    if os.path.lexists(path) and any(
        os.path.commonpath([source, os.path.realpath(path)]) == os.path.realpath(path)
        for source in self._inputs):
      return (f"{path!r} is an input of this run and would be written over; choose another "
              "directory for the results")
    for relative in _files(self.out, name):
      path = os.path.join(self.out, relative)
      if relative not in known:
        return f"{path!r} is in the way and was not written by an earlier run; {_REMEDY}"
      if _digest(path) != known[relative]:
        return f"{path!r} is in the way and was changed after an earlier run wrote it; {_REMEDY}"
    return ""


def check(out: str) -> str:
  """Returns the absolute path of a directory for results, which may not exist yet.

  Raises:
    PlacetoError: it cannot be made a directory that can be written to.
  """
  if not out.strip() or "\0" in out:
    raise PlacetoError(f"the directory for results has no name that can be one ({out!r}); give one")
  path = nearest = os.path.abspath(out)
  # The nearest path that exists decides whether the directory can be made.
  while not os.path.lexists(nearest):
    nearest = os.path.dirname(nearest)
  if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK | os.X_OK):
    raise PlacetoError(f"results cannot be written to {out!r}, because {nearest!r} is no directory "
                       "that you may write to; choose another directory, new or existing")
  return path


def make(directory: str) -> None:
  """Makes a directory unless it exists.

  Raises:
    PlacetoError: it cannot be made.
  """
  try:
    os.makedirs(directory, exist_ok=True)
  except OSError as error:
    raise PlacetoError(f"cannot make the directory {directory!r} ({error.strerror}); choose "
                       "another one") from None


def claim(
    directory: str, config: Dict[str, Any], what: str, *, begun: Sequence[str],
    growing: Sequence[str] = ()) -> None:
  """Writes config.json of a run that can be continued, or checks that the directory holds this run.

  The configuration of a run that failed before it had a result is replaced.

  Args:
    directory: of the run, made unless it exists.
    config: of the run, as JSON has it. Settings that are only in the file are not compared.
    what: the kind of run, for errors.
    begun: patterns of the results with which a run can be continued.
    growing: settings that may change from run to run.

  Raises:
    PlacetoError: the directory holds a run of another configuration.
  """
  make(directory)
  path = pathlib.Path(directory, "config.json")
  if not any(next(path.parent.glob(pattern), None) for pattern in begun):
    write_json(str(path), config)
    return
  stored = user_files.read_json_object(
      path, what=f"the configuration of the {what}",
      remedy="choose another directory, or put an undamaged copy back")
  for name, value in config.items():
    if name not in growing and stored.get(name) != value:
      raise PlacetoError(
          f"{directory} holds the {what} with {name}={stored.get(name)!r}, now it is {value!r}; "
          "choose another directory, or the old setting to resume")


@contextlib.contextmanager
def alone(directory: str) -> Iterator[None]:
  """Makes a directory for a run that can be continued, and locks it against a second run.

  On systems without locks, a second run is not refused.

  Raises:
    PlacetoError: another run works in it, or it cannot be made.
  """
  make(directory)
  with contextlib.ExitStack() as stack:
    with contextlib.suppress(ImportError):  # on Windows
      import fcntl

      descriptor = os.open(directory, os.O_RDONLY)
      # The lock ends with the descriptor, and thus with the process.
      stack.callback(os.close, descriptor)
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise PlacetoError(f"another run works in {directory!r}; wait for its end or choose "
                           "another directory") from None
      except OSError:  # a file system without locks
        pass
    yield


def cache_folder(name: str) -> str:
  """Returns the folder of one of this package's caches, which may not exist."""
  # The specification has relative paths ignored.
  base = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(base):
    base = os.path.join(os.path.expanduser("~"), ".cache")
  return os.path.join(base, "placeto_tf", name)


def make_private(path: str) -> str:
  """Makes a folder for code that is run, which only the user may write to; returns its real path.

  Raises:
    SetupError: other users may write to the folder, or replace it.
    OSError: it cannot be made.
  """
  os.makedirs(path, mode=0o700, exist_ok=True)
  path = folder = os.path.realpath(path)
  if not hasattr(os, "geteuid"):  # Windows, where modes do not say who may write
    return path
  # Whoever may write to a folder above could put another folder in its place.
  while True:
    status = os.stat(folder)
    others_write = stat.S_IMODE(status.st_mode) & 0o022
    # In a sticky folder, such as /tmp, nobody replaces another user's files.
    if status.st_uid not in (0, os.geteuid()) or others_write and (
        folder == path or not status.st_mode & stat.S_ISVTX):
      raise SetupError(
          f"{path!r} cannot hold compiled code: others may write to {folder!r} (owner "
          f"{status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}) and could have their code run; "
          "take their rights away (chmod go-w), or choose another folder")
    if folder == os.path.dirname(folder):
      return path
    folder = os.path.dirname(folder)


def _read_list(out: str) -> Dict[str, str]:
  """Returns path below the directory -> digest; {} where there is no list."""
  path = os.path.join(out, MANIFEST)
  if not os.path.lexists(path):
    return {}
  remedy = f"look into {out!r}, and move the list away"
  content = user_files.read_json_object(path, what="the list of results", remedy=remedy)
  files = content.get("files")
  if content.get("version") != 1 or not isinstance(files, dict):
    raise PlacetoError(f"{path!r} is no list of results; {remedy}")
  return files


def _files(root: str, name: str) -> List[str]:
  """Returns paths below the root of a file, or of all files in a directory, links unfollowed."""
  path = os.path.join(root, name)
  if not os.path.lexists(path):
    return []
  if os.path.islink(path) or not os.path.isdir(path):
    return [name]
  return [found for entry in sorted(os.listdir(path)) for found in _files(root, f"{name}/{entry}")]


def _digest(path: str) -> str:
  """Returns the size and SHA-256 of a regular file, "" for anything else."""
  if os.path.islink(path) or not os.path.isfile(path):
    return ""
  digest = hashlib.sha256()
  with open(path, "rb") as file:
    for chunk in iter(lambda: file.read(1 << 20), b""):
      digest.update(chunk)
  return f"{os.path.getsize(path)}:{digest.hexdigest()}"
