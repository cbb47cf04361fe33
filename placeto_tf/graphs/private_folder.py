"""Folders whose content may be run, and which therefore nobody else may write to."""

from __future__ import annotations

import os
import stat
from typing import Iterator

from placeto_tf.errors import SetupError


def cache_folder(name: str) -> str:
  """The folder of one of this package's caches, which may not exist, below XDG_CACHE_HOME."""
  # The specification has relative paths ignored.
  base = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(base):
    base = os.path.join(os.path.expanduser("~"), ".cache")
  return os.path.join(base, "placeto_tf", name)


def make_private(path: str) -> str:
  """Makes a folder that is the user's alone (mode 0700) unless it is there; its real path.

  Raises:
    SetupError: others may write to it, or put another one in its place.
    OSError: it cannot be made.
  """
  os.makedirs(path, mode=0o700, exist_ok=True)
  path = os.path.realpath(path)
  if not hasattr(os, "geteuid"):  # Windows, where modes do not say who may write
    return path
  trusted = (0, os.geteuid())
  for folder in _up_to_root(path):
    status = os.stat(folder)
    others_write = stat.S_IMODE(status.st_mode) & 0o022
    # In a sticky folder, such as /tmp, nobody replaces what is another's.
    if status.st_uid not in trusted or others_write and (
        folder == path or not status.st_mode & stat.S_ISVTX):
      raise SetupError(
          f"{path!r} cannot hold compiled code: others may write to {folder!r} (owner "
          f"{status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}) and could have their code run; "
          "take their rights away (chmod go-w), or choose another folder")
  return path


def _up_to_root(path: str) -> Iterator[str]:
  while True:
    yield path
    above = os.path.dirname(path)
    if above == path:
      return
    path = above
