"""Writes files so that a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Type

from placeto_tf.errors import PlacementError, PlacetoError


def write(
    path: str, content: bytes, *, what: str = "", error_type: Type[PlacetoError] = PlacementError
) -> None:
  """Writes beside `path` and renames; `what`, such as "the cluster file ", is for the error.

  Raises:
    error_type: the file cannot be written.
  """
  folder = os.path.dirname(os.path.abspath(path))
  try:
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=os.path.basename(path) + ".")
    try:
      with os.fdopen(descriptor, "wb") as file:
        file.write(content)
      umask = os.umask(0)
      os.umask(umask)
      os.chmod(temporary, 0o666 & ~umask)  # mkstemp's files are readable by the owner alone
      os.replace(temporary, path)
    except BaseException:
      os.unlink(temporary)
      raise
  except OSError as error:
    raise error_type(
        f"cannot write {what}{path!r} ({error.strerror}); give a path in a folder that can be "
        "written to") from None


def write_json(path: str, content: Any, **options: Any) -> None:
  """Writes an indented JSON file as `write` does. Args: options: see `write`."""
  text = json.dumps(content, indent=1) + "\n"
  write(path, text.encode("utf-8"), **options)
