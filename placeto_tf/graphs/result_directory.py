"""A directory of results: files of earlier runs are replaced, files of the user never.

A run keeps its results in a directory of its own inside, `.partial-ID`, until all of them are
there, and then moves each to its name: inside one directory moving works on any disk, a mounted
one included. `.results.json` lists what a run wrote, with digests:

  {"version": 1, "files": {"report.json": "1234:SHA-256 in hex", "saved_model/...": ...}}

(The size in bytes comes first, so that a file of another size need not be read.) A file that is in
the list and unchanged is replaced. Any other file in the way is an error, before the search begins
and again before anything is moved. A run that is killed leaves its `.partial-ID`; the next one
removes it, or, where the list of its results is already in it (`.complete`), moves what is left of
them. Files of other names stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from typing import Dict, Iterator, List, Optional, Sequence, TypeVar

from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import atomic, user_files

MANIFEST = ".results.json"
_PARTIAL = ".partial-"
_COMPLETE = ".complete"  # in a partial directory: the list of its results, which may be moved
_RELEASE_S = 1.0
_REMEDY = "move it away or choose another directory"


_Self = TypeVar("_Self", bound="ResultDirectory")


class ResultDirectory:
  """The results of one run on their way into a directory.

  Attributes:
    path: where the run writes them.
  """

  def __init__(self, out: str, inputs: Sequence[str] = ()):
    """Args: out: the directory; inputs: files that the run reads, which are never overwritten."""
    self.out = check(out)
    self._inputs = [os.path.realpath(path) for path in inputs if path and os.path.exists(path)]
    self.path = ""
    self._kept = False
    self._made: List[str] = []
    self._lock: Optional[int] = None

  def __enter__(self: _Self) -> _Self:
    """Makes the directory, tries the steps that could fail at the end, and cleans up after killed
    runs.

    Raises:
      PlacetoError: it cannot be written.
    """
    for path in self._inputs:
      if os.path.isdir(path) and os.path.commonpath([path, os.path.realpath(self.out)]) == path:
        raise PlacetoError(f"the results would be written into the input {path!r}; choose a "
                           "directory outside")
    try:
      self._made = _make(self.out)
      self.path = tempfile.mkdtemp(dir=self.out, prefix=_PARTIAL)
      os.chmod(self.path, 0o777 & ~_umask())
      self._lock = _locked(self.path)
      trial = os.path.join(self.path, "trial")
      os.mkdir(trial)
      os.rename(trial, f"{self.path}-trial")
      os.rmdir(f"{self.path}-trial")
      tidy(self.out, self.path)
    except BaseException as error:
      self._remove()
      if isinstance(error, OSError):
        raise PlacetoError(f"cannot write to {self.out!r} ({error.strerror}); choose a directory "
                           "that you may write to") from None
      raise
    return self

  def __exit__(self, *_: object) -> None:
    self._remove()

  def claim(self, names: Sequence[str]) -> None:
    """Checks that results of these names can be written.

    Raises:
      PlacetoError: a file of such a name was not written by an earlier run, was changed since, or
        is an input of this run.
    """
    for name in names:
      path = os.path.join(self.out, name)
      for source in self._inputs:
        if os.path.lexists(path) and _inside(source, os.path.realpath(path)):
          raise PlacetoError(
              f"{path!r} is an input of this run and would be written over; choose another "
              "directory for the results")
    known = _read_list(self.out, MANIFEST)
    for name in names:
      for relative in _files(self.out, name):
        path = os.path.join(self.out, relative)
        if relative not in known:
          raise PlacetoError(f"{path!r} is in the way and was not written by an earlier run; "
                             f"{_REMEDY}")
        if not _matches(path, known[relative]):
          raise PlacetoError(f"{path!r} is in the way and was changed after an earlier run wrote "
                             f"it; {_REMEDY}")

  def publish(self) -> None:
    """Moves the results to their names, and removes those of earlier runs that are not replaced.

    Raises:
      PlacetoError: they cannot be moved; they stay where they are, and the message says where.
    """
    names = sorted(os.listdir(self.path))
    try:
      self.claim(names)
      new = {relative: [_digest(os.path.join(self.path, relative))]
             for name in names for relative in _files(self.path, name)}
      old = _read_list(self.out, MANIFEST)
      old = {relative: digests for relative, digests in old.items()  # the others are kept
             if relative.partition("/")[0] in names or self._is_unchanged(relative, old)}
      _write_list(self.path, _COMPLETE, new)
      # Both are known while some are moved and some are not.
      _write_list(self.out, MANIFEST, {name: sorted({*old.get(name, ()), *new.get(name, ())})
                                       for name in {*old, *new}})
      _finish(self.out, self.path)
    except (OSError, PlacetoError) as error:
      self._kept = True
      reason = getattr(error, "strerror", None) or str(error)
      raise PlacetoError(
          f"the results could not be moved into {self.out!r} and are in {self.path!r} ({reason})"
      ) from None

  def _is_unchanged(self, relative: str, known: Dict[str, List[str]]) -> bool:
    """Whether the files of the earlier result that a file is of are unchanged, and no inputs."""
    name = relative.partition("/")[0]
    path = os.path.join(self.out, name)
    if not os.path.lexists(path) or any(
        _inside(source, os.path.realpath(path)) for source in self._inputs):
      return False
    return all(_matches(os.path.join(self.out, relative), known.get(relative, ()))
               for relative in _files(self.out, name))

  def _remove(self) -> None:
    if self.path and not self._kept:
      shutil.rmtree(self.path, ignore_errors=True)
    if self._lock is not None:
      os.close(self._lock)
      self._lock = None
    for path in self._made:  # the run failed
      with contextlib.suppress(OSError):
        os.rmdir(path)


def changed_files(out: str) -> List[str]:
  """Results in a directory that are missing, or not as the run wrote them.

  Raises:
    PlacetoError: the directory has no list of results that can be read.
  """
  if not os.path.lexists(os.path.join(out, MANIFEST)):
    raise PlacetoError(f"{out!r} has no {MANIFEST}, which runs write; give a directory of results")
  known = _read_list(out, MANIFEST)
  return [name for name in sorted(known) if not _matches(os.path.join(out, name), known[name])]


def check(out: str) -> str:
  """The absolute path of a directory for results, which may not exist yet.

  Raises:
    PlacetoError: it cannot be made a directory that can be written to.
  """
  if not out.strip() or "\0" in out:
    raise PlacetoError(f"the directory for results has no name that can be one ({out!r}); give one")
  path = os.path.abspath(out)
  if os.path.lexists(path) and not os.path.isdir(path):
    raise PlacetoError(f"{out!r} is a file, or a link that leads nowhere; expected a directory, "
                       "new or existing")
  nearest = path
  while not os.path.lexists(nearest):
    nearest = os.path.dirname(nearest)
  if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK | os.X_OK):
    raise PlacetoError(f"{out!r} cannot be written; choose a directory that you may write to")
  return path


def make(directory: str) -> None:
  """Makes a directory unless it is there. Raises: PlacetoError: it cannot be made."""
  try:
    os.makedirs(directory, exist_ok=True)
  except OSError as error:
    raise PlacetoError(f"cannot make the directory {directory!r} ({error.strerror}); choose "
                       "another one") from None


@contextlib.contextmanager
def alone(directory: str) -> Iterator[None]:
  """Makes a directory that runs go on in, and keeps a second run out of it while one does.

  Where the system has no locks, a second run is not kept out.

  Raises:
    PlacetoError: another run works in it, or it cannot be made.
  """
  make(directory)
  deadline = time.monotonic() + _RELEASE_S
  while True:
    lock = None
    try:
      lock = _locked(directory)
    except BlockingIOError:
      # A child that a killed run had forked holds its lock for a moment longer.
      if time.monotonic() < deadline:
        time.sleep(_RELEASE_S / 20)
        continue
      raise PlacetoError(f"another run works in {directory!r}; wait for its end or choose another "
                         "directory") from None
    except OSError:
      pass
    break
  try:
    yield
  finally:
    if lock is not None:
      os.close(lock)


def _make(path: str) -> List[str]:
  """Makes a directory and its parents; those that were made, the innermost first."""
  made = []
  while not os.path.isdir(path):
    made.append(path)
    path = os.path.dirname(path)
  for path in reversed(made):
    os.mkdir(path)
  return made


def _locked(directory: str) -> Optional[int]:
  """A descriptor of a directory that holds its lock, which ends with the process."""
  try:
    import fcntl
  except ImportError:  # Windows
    return None
  descriptor = os.open(directory, os.O_RDONLY)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BaseException:
    os.close(descriptor)
    raise
  return descriptor


def tidy(out: str, own: str = "") -> None:
  """Removes files of killed runs, or finishes moves that they began.

  Args:
    out: a directory of results.
    own: of the run that calls, inside `out`.

  Raises:
    PlacetoError: a plan of moves is none that a run wrote; nothing was moved.
  """
  for name in os.listdir(out):
    path = os.path.join(out, name)
    if not name.startswith(_PARTIAL) or path == own or os.path.islink(path):
      continue
    try:
      lock = _locked(path)
    except OSError:  # its run goes on
      continue
    try:
      if os.path.lexists(os.path.join(path, _COMPLETE)):
        _finish(out, path)
      shutil.rmtree(path, ignore_errors=True)
    finally:
      if lock is not None:
        os.close(lock)


def _finish(out: str, partial: str) -> None:
  """Moves complete results to their names; files that were moved before stay.

  What they replace or remove was written by a run and is unchanged, for anybody who may write to
  the directory can have left a list there.

  Raises:
    PlacetoError: the list is none that a run wrote; nothing was moved.
  """
  files, known = _read_list(partial, _COMPLETE), _read_list(out, MANIFEST)
  names, earlier = (sorted({relative.partition("/")[0] for relative in each})
                    for each in (files, known))
  gone = [name for name in earlier if name not in names]
  for name in [*gone, *(name for name in names if os.path.lexists(os.path.join(partial, name)))]:
    for relative in _files(out, name):
      if not _matches(os.path.join(out, relative), known.get(relative, ())):
        raise PlacetoError(
            f"{partial!r} holds results of a run that was cut off, which would replace "
            f"{os.path.join(out, relative)!r}, which no run wrote; move one of them away")
  aside = os.path.join(partial, ".old")
  os.makedirs(aside, exist_ok=True)
  for name in gone:
    if os.path.lexists(os.path.join(out, name)):
      os.rename(os.path.join(out, name), os.path.join(aside, name))
  for name in names:
    if os.path.lexists(os.path.join(partial, name)):
      if os.path.lexists(os.path.join(out, name)):
        os.rename(os.path.join(out, name), os.path.join(aside, name))
      os.rename(os.path.join(partial, name), os.path.join(out, name))
  _write_list(out, MANIFEST, files)
  os.unlink(os.path.join(partial, _COMPLETE))


def _is_component(name: object) -> bool:
  """Whether it is the name of something in a directory, and not of what the directory keeps."""
  return isinstance(name, str) and name not in ("", ".", "..", MANIFEST) and not (
      name.startswith(_PARTIAL) or "/" in name or os.sep in name or "\0" in name
      or os.path.isabs(name) or (os.altsep is not None and os.altsep in name))


def _read_list(folder: str, file: str) -> Dict[str, List[str]]:
  """Path below the folder -> digests that it may have; nothing where there is no list."""
  path = os.path.join(folder, file)
  if not os.path.lexists(path):
    return {}
  remedy = f"look into {folder!r}, and move the list away"
  content = user_files.read_json_object(path, what="the list of results", remedy=remedy)
  files = content.get("files")
  if content.get("version") != 1 or not isinstance(files, dict):
    raise PlacetoError(f"{path!r} is no list of results; {remedy}")
  for relative in files:
    if not all(map(_is_component, relative.split("/"))):
      raise PlacetoError(f"{path!r} lists {relative!r}, which is no result; {remedy}")
  return {name: [digest] if isinstance(digest, str) else list(map(str, digest))
          for name, digest in files.items() if isinstance(digest, (str, list))}


def _write_list(folder: str, file: str, files: Dict[str, List[str]]) -> None:
  atomic.write_json(os.path.join(folder, file), {"version": 1, "files": {
      name: digests[0] if len(digests) == 1 else digests
      for name, digests in sorted(files.items())}})


def _files(root: str, name: str) -> List[str]:
  """Paths below the root of a file, or of all files in a directory; links are not followed."""
  path = os.path.join(root, name)
  if not os.path.lexists(path):
    return []
  if os.path.islink(path) or not os.path.isdir(path):
    return [name]
  return [found for entry in sorted(os.listdir(path)) for found in _files(root, f"{name}/{entry}")]


def _matches(path: str, digests: Sequence[str]) -> bool:
  """Whether a file has one of the digests; what is no regular file has none."""
  if os.path.islink(path) or not os.path.isfile(path):
    return False
  size = f"{os.path.getsize(path)}:"
  return any(digest.startswith(size) for digest in digests) and _digest(path) in digests


def _digest(path: str) -> str:
  """Size and SHA-256 of a regular file."""
  digest = hashlib.sha256()
  with open(path, "rb") as file:
    for chunk in iter(lambda: file.read(1 << 20), b""):
      digest.update(chunk)
  return f"{os.path.getsize(path)}:{digest.hexdigest()}"


def _inside(path: str, folder: str) -> bool:
  return path == folder or os.path.commonpath([path, folder]) == folder


def _umask() -> int:
  umask = os.umask(0)
  os.umask(umask)
  return umask
