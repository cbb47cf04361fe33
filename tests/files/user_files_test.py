"""Files that a user names: what is not a regular file of a sane size and content is refused."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
from prediction_study import StudyConfig

from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import ClusterError, CostError, GraphError, MeasurementError, PlacementError
from placeto_tf.files import user_files
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.policies.placeto.scorer import ScorerWeights

OPTIONS = dict(what="the file", remedy="give another one", error_type=PlacementError)


def fifo(path):
  os.mkfifo(path)


def device(path):
  os.symlink("/dev/zero", path)


def folder(path):
  os.mkdir(path)


def huge(path):
  with open(path, "wb") as file:
    file.truncate(1 << 40)  # holes: takes no disk


def loop(path):
  os.symlink(path, path)


@pytest.mark.parametrize("make, said", [
    (fifo, "it is a pipe"), (device, "it is a device"), (folder, "it is a directory"),
    (huge, "holds more than"), (loop, "symbolic links")])
@pytest.mark.parametrize("reader", [
    user_files.read_bytes, user_files.read_text, user_files.read_json, user_files.read_arrays])
def test_what_is_no_regular_file_of_a_sane_size_is_refused(tmp_path, make, said, reader):
  path = str(tmp_path / "file")
  make(path)
  with pytest.raises(PlacementError, match=said) as caught:
    reader(path, **OPTIONS)
  assert path in str(caught.value) and "give another one" in str(caught.value)


def test_what_other_code_is_going_to_open_is_checked_first(tmp_path):
  path = str(tmp_path / "file")
  fifo(path)
  with pytest.raises(PlacementError, match="it is a pipe"):
    user_files.check_regular(path, **OPTIONS)
  user_files.check_regular(str(tmp_path / "absent"), **OPTIONS)


@pytest.mark.parametrize("make", [fifo, device, huge])
def test_every_reader_of_a_users_file_refuses_pipes_devices_and_far_too_much(tmp_path, make):
  names = ("graph.pb", "graph.pbtxt", "graph.meta", "graph.cost_graph.pb", "cluster.json",
           "placement.json", "study.json", "feeds.npz", "weights.json")
  for name in names:
    make(str(tmp_path / name))
  for name in names[:4]:
    with pytest.raises(GraphError, match="regular file|more than"):
      load_graph(str(tmp_path / name))
  with pytest.raises(ClusterError, match="regular file|more than"):
    Cluster.parse(str(tmp_path / "cluster.json"))
  with pytest.raises(PlacementError, match="regular file|more than"):
    Placement.load(str(tmp_path / "placement.json"))
  with pytest.raises(MeasurementError, match="regular file|more than"):
    StudyConfig.load(str(tmp_path / "study.json"))
  with pytest.raises(PlacementError, match="regular file|more than"):
    ScorerWeights.load(str(tmp_path))
  graph = load_graph("zoo:rnnlm:layers=1:steps=2:hidden=16:batch=2:vocab=20")
  with pytest.raises(CostError, match="regular file|more than"):
    estimate_costs(graph, Cluster.parse("k80:1"), source=str(tmp_path / "graph.pb"))


@pytest.mark.parametrize("content, said", [
    (b'{"a": 1, "b": 2, "a": 3}', "'a' appears twice"),
    (b'{"a": {"b": [{"c": 1, "c": 1}]}}', "'c' appears twice"),
    (b'{"a": NaN}', "NaN, which is no number"),
    (b'{"a": 1e999}', "1e999 is too large"),
    (b'{"a": ' + b"7" * 1_000_000 + b"}", "does not fit in 64 bits"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"a": 1', "delimiter"), (b"", "Expecting value"), (b"{} {}", "Extra data"),
    (b'{"a": "\xff"}', "not UTF-8"),
])
def test_json_that_would_be_misread_is_refused(tmp_path, content, said):
  path = tmp_path / "file.json"
  path.write_bytes(content)
  with pytest.raises(PlacementError, match=said) as caught:
    user_files.read_json(str(path), **OPTIONS)
  assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_json_comes_back_as_it_was_written(tmp_path):
  content = {"a": [1, -2**63, 2**63 - 1, 1.5, 1e-300, True, None, "ü"], "b": {"a": {}}}
  path = tmp_path / "file.json"
  path.write_text(json.dumps(content))
  assert user_files.read_json_object(str(path), **OPTIONS) == content
  path.write_text("[1]")
  with pytest.raises(PlacementError, match=r"holds \[1\], expected an object"):
    user_files.read_json_object(str(path), **OPTIONS)


def npy(array, shape=None, descr=None):
  """An .npy file; its header may lie."""
  file = io.BytesIO()
  np.lib.format.write_array_header_1_0(file, {
      "descr": descr or np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False,
      "shape": shape or array.shape})
  return file.getvalue() + array.tobytes()


def archive(path, members, compression=zipfile.ZIP_STORED):
  with zipfile.ZipFile(path, "w", compression) as found:
    for name, content in members:
      found.writestr(name, content)


def test_arrays_come_back_as_they_were_written(tmp_path):
  path = str(tmp_path / "arrays.npz")
  arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7),
            "c": np.zeros((0, 4)), "d": np.asfortranarray(np.arange(6).reshape(2, 3))}
  for save in (np.savez, np.savez_compressed):
    save(path, **arrays)
    found = user_files.read_arrays(path, **OPTIONS)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
      np.testing.assert_array_equal(found[name], array)
      assert found[name].dtype == array.dtype


FOUR = np.zeros(4, np.float32)


@pytest.mark.parametrize("members, said", [
    ([("a.npy", npy(FOUR, shape=(2**40,)))], "damaged"),
    ([("a.npy", npy(FOUR)[:-1])], "damaged"),
    ([("a.npy", b"")], "damaged"), ([("a.npy", b"\x93NUMPY\x09\x00")], "damaged"),
    ([("a.npy", npy(np.zeros(1, np.int64), descr="|O"))], "damaged"),
    ([("a.npy", npy(FOUR)), ("b", b"text")], "'b' is no array"),
])
def test_archives_that_lie_about_their_arrays_are_refused(tmp_path, members, said):
  path = str(tmp_path / "arrays.npz")
  archive(path, members)
  with pytest.raises(PlacementError, match=said):
    user_files.read_arrays(path, **OPTIONS)


def test_an_archive_that_would_unpack_to_far_too_much_is_refused(tmp_path):
  path = str(tmp_path / "arrays.npz")
  archive(path, [("a.npy", npy(np.zeros(1 << 20, np.uint8)))], zipfile.ZIP_DEFLATED)
  assert os.path.getsize(path) < 10_000
  with pytest.raises(PlacementError, match="take more than 100,000 bytes"):
    user_files.read_arrays(path, most_bytes=100_000, **OPTIONS)
