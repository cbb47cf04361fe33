"""Folders whose content may be run are the user's alone."""

import os
import stat

import pytest

from placeto_tf.errors import SetupError
from placeto_tf.files import outputs

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="has no modes")


@pytest.fixture(name="folder")
def folder_fixture(tmp_path):
  """A path below folders that are this user's alone."""
  (tmp_path / "a").mkdir(mode=0o755)
  return tmp_path / "a" / "cache"


def test_a_folder_is_made_for_its_user_alone(folder):
  assert outputs.make_private(str(folder)) == os.path.realpath(folder)
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  outputs.make_private(str(folder))  # a second time


@pytest.mark.parametrize("which", ["cache", "a"])
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(folder, which, mode):
  folder.mkdir(mode=0o700)
  (folder if which == "cache" else folder.parent).chmod(mode)
  with pytest.raises(SetupError, match=f"others may write to .*{which}.*mode {mode:o}.*chmod go-w"):
    outputs.make_private(str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_somebody_else_is_refused(folder):
  folder.mkdir(mode=0o700)
  os.chown(folder, 12345, -1)
  with pytest.raises(SetupError, match="owner 12345"):
    outputs.make_private(str(folder))
