"""Results appear whole, replace those of earlier runs alone, and are never lost."""

import json
import os
import pathlib

import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.files import outputs
from placeto_tf.files.outputs import ResultDirectory


def write(out, files, inputs=()):
  """One run that writes these files: name -> text."""
  with ResultDirectory(str(out), [str(path) for path in inputs]) as results:
    results.claim([name.partition("/")[0] for name in files])
    for name, text in files.items():
      path = pathlib.Path(results.path, name)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)
    results.publish()


def contents(folder):
  return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*")
          if path.is_file() and path.name != outputs.MANIFEST}


def test_results_of_an_earlier_run_are_replaced_and_other_files_stay(tmp_path):
  out = tmp_path / "deep" / "out"
  write(out, {"a.json": "1", "model/graph.pb": "1", "model/variables/data": "1", "gone.txt": "1"})
  (out / "mine.txt").write_text("mine")
  write(out, {"a.json": "2", "model/graph.pb": "2"})
  assert contents(out) == {"a.json": "2", "model/graph.pb": "2", "mine.txt": "mine"}
  assert sorted(path.name for path in out.iterdir()) == [
      ".results.json", "a.json", "mine.txt", "model"]


@pytest.mark.parametrize("name, text", [
    ("a.json", None), ("model", None), ("model/more.txt", None), ("model/graph.pb", "changed")])
def test_what_is_the_users_own_is_an_error_that_names_it(tmp_path, name, text):
  out = tmp_path / "out"
  if "/" in name:
    write(out, {"a.json": "1", "model/graph.pb": "1"})
  out.mkdir(exist_ok=True)
  (out / name).write_text(text or "mine")
  before = contents(out)
  with pytest.raises(PlacetoError, match=f"{name}' is in the way"):
    write(out, {"a.json": "2", "model/graph.pb": "2"})
  assert contents(out) == before


def test_a_link_in_the_way_is_not_followed(tmp_path):
  out = tmp_path / "out"
  out.mkdir()
  (tmp_path / "theirs").mkdir()
  (out / "model").symlink_to(tmp_path / "theirs")
  with pytest.raises(PlacetoError, match="model' is in the way"):
    write(out, {"model/graph.pb": "2"})
  assert not list((tmp_path / "theirs").iterdir())


def test_an_input_is_never_written_over_though_an_earlier_run_wrote_it(tmp_path):
  out = tmp_path / "out"
  write(out, {"a.json": "1", "model/graph.pb": "1"})
  before = contents(out)
  for source, said in ((out / "model", "is an input"), (out / "a.json", "is an input"),
                       (tmp_path, "written into the input"), (out, "written into the input")):
    with pytest.raises(PlacetoError, match=said):
      write(out, {"a.json": "2", "model/graph.pb": "2"}, [source])
    assert contents(out) == before
  with pytest.raises(PlacetoError, match="is an input"):
    os.symlink(out / "a.json", tmp_path / "link")
    write(out, {"a.json": "2"}, [tmp_path / "link"])
  # One that is not replaced but would go away stays.
  write(out, {"a.json": "2"}, [out / "model"])
  assert contents(out) == {"a.json": "2", "model/graph.pb": "1"}


@pytest.mark.parametrize("prepare, out", [
    (lambda at: None, ""), (lambda at: None, "  "),
    (lambda at: (at / "file").write_text("x"), "file"),
    (lambda at: (at / "file").write_text("x"), "file/inside"),
    (lambda at: os.symlink("loop", at / "loop"), "loop"),
    (lambda at: os.symlink("loop", at / "loop"), "loop/inside"), (lambda at: None, "a\0b"),
])
def test_what_cannot_become_a_directory_is_refused_at_the_start(
    tmp_path, monkeypatch, prepare, out):
  monkeypatch.chdir(tmp_path)
  prepare(tmp_path)
  before = sorted(os.listdir(tmp_path))
  with pytest.raises(PlacetoError):
    outputs.check(out)
  with pytest.raises(PlacetoError), ResultDirectory(out):
    pass
  assert sorted(os.listdir(tmp_path)) == before


def test_a_failing_run_leaves_nothing(tmp_path):
  with pytest.raises(ZeroDivisionError), ResultDirectory(str(tmp_path / "a" / "b")):
    raise ZeroDivisionError
  assert list(tmp_path.iterdir()) == []
  write(tmp_path / "out", {"a.json": "1"})
  before = sorted((tmp_path / "out").iterdir())
  with pytest.raises(ZeroDivisionError), ResultDirectory(str(tmp_path / "out")) as results:
    pathlib.Path(results.path, "a.json").write_text("2")
    raise ZeroDivisionError
  assert sorted((tmp_path / "out").iterdir()) == before


def test_a_directory_in_a_parent_that_cannot_be_written_will_do(tmp_path, monkeypatch):
  # Nothing is made beside `out`: it may be a mounted disk.
  out = tmp_path / "out"
  out.mkdir()
  original = os.rename

  def rename(source, target):
    assert str(source).startswith(str(out)) and str(target).startswith(str(out))
    original(source, target)

  monkeypatch.setattr(os, "rename", rename)
  write(out, {"a.json": "1"})
  write(out, {"a.json": "2"})
  assert contents(tmp_path) == {"out/a.json": "2"}


def test_results_that_cannot_be_moved_stay_and_the_message_says_where(tmp_path, monkeypatch):
  out = tmp_path / "out"
  with ResultDirectory(str(out)) as results:
    pathlib.Path(results.path, "a.json").write_text("1")
    (out / "a.json").write_text("came in between")
    with pytest.raises(PlacetoError, match="could not be moved.*are in.*partial") as caught:
      results.publish()
  assert results.path in str(caught.value)
  assert pathlib.Path(results.path, "a.json").read_text() == "1"
  assert (out / "a.json").read_text() == "came in between"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2, "files": {}}', "{" * 10**5])
def test_a_damaged_list_of_results_is_an_error(tmp_path, content):
  out = tmp_path / "out"
  write(out, {"a.json": "1"})
  (out / outputs.MANIFEST).write_text(content)
  with pytest.raises(PlacetoError, match=".results.json"):
    write(out, {"a.json": "2"})
  assert contents(out) == {"a.json": "1"}


def test_a_run_that_goes_on_is_left_alone_by_another(tmp_path):
  out = tmp_path / "out"
  with ResultDirectory(str(out)) as first:
    pathlib.Path(first.path, "a.json").write_text("1")
    with ResultDirectory(str(out)):
      assert os.path.exists(first.path)
    first.publish()
  assert contents(out) == {"a.json": "1"}


def test_a_second_run_in_a_directory_says_so(tmp_path):
  with outputs.alone(str(tmp_path)):
    with pytest.raises(PlacetoError, match="another run works in"):
      with outputs.alone(str(tmp_path)):
        pass
  with outputs.alone(str(tmp_path)):
    pass
  assert list(tmp_path.iterdir()) == []


def test_a_list_that_names_files_outside_removes_nothing(tmp_path):
  out = tmp_path / "out"
  write(out, {"a": "1"})
  (tmp_path / "precious").write_text("precious")
  manifest = out / outputs.MANIFEST
  content = json.loads(manifest.read_text())
  for name in ("../precious", "..", "."):
    content["files"][name] = outputs._digest(str(tmp_path / "precious"))
  manifest.write_text(json.dumps(content))
  write(out, {"b": "2"})
  assert contents(tmp_path) == {"precious": "precious", "out/b": "2"}
