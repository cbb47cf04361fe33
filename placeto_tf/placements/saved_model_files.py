"""Copies the files of a SavedModel: those inside its directory, and nothing outside of it.

A SavedModel may come from a stranger. A link in its assets could copy a private file of the user, a
device file could fill the disk, and a directory that contains itself would be copied without end.
So a link to a file inside is copied as that file, and anything else is refused before a byte is
written.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import Collection, List, Tuple

from placeto_tf.errors import GraphError, PlacementError
from placeto_tf.graphs.user_files import kind_of

_REMEDY = "copy the files that you trust to a directory without links, and use that"


def list_files(directory: str) -> List[Tuple[str, str]]:
  """(path below the directory, path to read it from) of all files, in order.

  Raises:
    GraphError: a link leads to a directory, to nothing or out of the SavedModel, or an entry is
      neither a file nor a directory.
  """
  root = os.path.realpath(directory)
  found: List[Tuple[str, str]] = []
  folders = [""]
  while folders:
    folder = folders.pop()
    try:
      with os.scandir(os.path.join(root, folder)) as entries:
        names = sorted(entry.name for entry in entries)
    except OSError as error:
      raise GraphError(
          f"cannot read {os.path.join(directory, folder)!r} ({error.strerror}) of the SavedModel; "
          "make it readable") from None
    for name in names:
      relative = os.path.join(folder, name)
      path = os.path.join(root, relative)
      reason, real = _judge(root, path)
      if reason:
        raise GraphError(
            f"the SavedModel {directory!r} holds {relative!r}, which is {reason}; {_REMEDY}")
      if stat.S_ISDIR(os.lstat(path).st_mode):
        folders.append(relative)
      else:
        found.append((relative, real))
  return sorted(found)


def check_copyable(directory: str, out_dir: str, skipped: Collection[str] = ()) -> None:
  """Raises where a SavedModel cannot be copied into a directory, which may not exist yet.

  Args:
    directory: the SavedModel.
    out_dir: where the copy goes.
    skipped: paths below the directory that are not copied.

  Raises:
    GraphError: it holds entries that are not copied.
    PlacementError: `out_dir` lies inside it, or there is no room.
  """
  root, target = os.path.realpath(directory), os.path.realpath(out_dir)
  if os.path.commonpath([root, target]) == root:
    raise PlacementError(
        f"{out_dir!r} lies in the SavedModel {directory!r}, which is to be copied to it; choose a "
        "directory outside")
  needed = sum(os.stat(real).st_size for relative, real in list_files(directory)
               if relative not in skipped)
  while not os.path.exists(target):
    target = os.path.dirname(target)
  free = shutil.disk_usage(target).free
  if needed > free:
    raise PlacementError(
        f"the SavedModel {directory!r} takes {needed:,} bytes, and where {out_dir!r} is there are "
        f"{free:,}; make room or choose another directory")


def copy(directory: str, target: str, skipped: Collection[str] = ()) -> None:
  """Makes a directory and copies the files that `list_files` lists to it.

  Raises:
    GraphError: the SavedModel holds entries that are not copied.
    OSError: a file cannot be copied.
  """
  files = list_files(directory)
  os.makedirs(target)
  for relative, real in files:
    if relative not in skipped:
      path = os.path.join(target, relative)
      os.makedirs(os.path.dirname(path), exist_ok=True)
      shutil.copyfile(real, path, follow_symlinks=False)


def _judge(root: str, path: str) -> Tuple[str, str]:
  """Why an entry is not copied, or "", and where its content is."""
  real, mode = path, os.lstat(path).st_mode
  if stat.S_ISLNK(mode):
    real = os.path.realpath(path)
    try:
      mode = os.stat(real).st_mode
    except OSError:
      return "a link that leads nowhere", real
    if os.path.commonpath([root, real]) != root:
      return f"a link out of it, to {real!r}", real
    if stat.S_ISDIR(mode):
      return "a link to a directory", real
  if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
    return kind_of(mode), real
  return "", real
