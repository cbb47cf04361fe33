"""A SavedModel's files are copied; what its links lead to, and what is no file, is not."""

import os
import pathlib

import pytest

from placeto_tf.errors import GraphError, PlacementError
from placeto_tf.placements import saved_model_files


@pytest.fixture(name="model")
def model_fixture(tmp_path):
  model = tmp_path / "model"
  (model / "assets").mkdir(parents=True)
  (model / "variables").mkdir()
  (model / "saved_model.pb").write_bytes(b"graph")
  (model / "assets" / "words.txt").write_text("words")
  (model / "variables" / "variables.index").write_bytes(b"index")
  (tmp_path / "secret").write_text("secret")
  return model


def contents(path):
  return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*")
          if file.is_file()}


def test_all_files_are_copied_and_links_inside_become_files(model, tmp_path):
  (model / "assets" / "same.txt").symlink_to("words.txt")
  (model / "variables" / "also.txt").symlink_to(model / "assets" / "same.txt")
  saved_model_files.check_copyable(str(model), str(tmp_path / "out"))
  saved_model_files.copy(str(model), str(tmp_path / "out"), ("saved_model.pb",))
  expected = contents(model)
  del expected["saved_model.pb"]
  assert contents(tmp_path / "out") == expected and len(expected) == 4
  assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


def test_the_directory_itself_may_be_a_link(model, tmp_path):
  (tmp_path / "link").symlink_to("model")
  saved_model_files.copy(str(tmp_path / "link"), str(tmp_path / "out"))
  assert contents(tmp_path / "out") == contents(model)


@pytest.mark.parametrize("make, said", [
    (lambda at: at.symlink_to("../../secret"), "a link out of it"),
    (lambda at: at.symlink_to("/dev/zero"), "a link out of it"),
    (lambda at: at.symlink_to("nothing"), "leads nowhere"),
    (lambda at: at.symlink_to(at), "leads nowhere"),
    (lambda at: at.symlink_to(".."), "a link to a directory"),
    (lambda at: at.symlink_to("."), "a link to a directory"),
    (lambda at: at.symlink_to("../.."), "a link out of it"),
    (os.mkfifo, "a pipe"),
])
def test_anything_else_is_refused_before_a_byte_is_written(model, tmp_path, make, said):
  make(pathlib.Path(model, "assets", "entry"))
  with pytest.raises(GraphError, match=f"entry.*{said}"):
    saved_model_files.check_copyable(str(model), str(tmp_path / "out"))
  with pytest.raises(GraphError, match=f"entry.*{said}"):
    saved_model_files.copy(str(model), str(tmp_path / "out"))
  assert not (tmp_path / "out").exists()


def test_a_copy_inside_the_model_is_refused(model, tmp_path):
  (tmp_path / "link").symlink_to("model")
  for out in (model, model / "assets" / "out", tmp_path / "link" / "out"):
    with pytest.raises(PlacementError, match="lies in the SavedModel"):
      saved_model_files.check_copyable(str(model), str(out))


def test_a_model_larger_than_the_disk_is_refused(model, tmp_path):
  with open(model / "variables" / "variables.data", "wb") as file:
    file.truncate(1 << 43)  # holes
  with pytest.raises(PlacementError, match="make room"):
    saved_model_files.check_copyable(str(model), str(tmp_path / "not" / "there" / "yet"))
