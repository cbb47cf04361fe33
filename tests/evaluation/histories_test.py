"""Histories of rows, as somebody else may have left them."""

import json
import os

import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation.evaluate import read_history

ROW = {"placement": "placements/a.json"}


@pytest.fixture(name="path")
def path_fixture(tmp_path):
  (tmp_path / "histories").mkdir()
  return tmp_path / "histories" / "a.json"


def test_a_history_is_read(path, tmp_path):
  path.write_text(json.dumps([[1, 0.5, 20.0], [3, 0.75, 10.0]]))
  assert read_history(ROW, str(tmp_path)).tolist() == [[1, 0.5, 20.0], [3, 0.75, 10.0]]


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "[1]", "[[1, 2]]", '[[1, 2, "x"]]', "[" * 10**5])
def test_a_damaged_history_is_an_error_with_a_remedy(path, tmp_path, content):
  path.write_text(content)
  with pytest.raises(PlacetoError, match="delete the row to run it again"):
    read_history(ROW, str(tmp_path))


def test_a_pipe_is_refused(path, tmp_path):
  os.mkfifo(path)
  with pytest.raises(PlacetoError, match="it is a pipe"):
    read_history(ROW, str(tmp_path))
