"""replicas.csv of earlier runs, as a kill or somebody else may have left it."""

import dataclasses
import json
import os

import pytest

from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation import replica_table

SPEC = "zoo:rnnlm:layers=1:hidden=8:steps=2:vocab=16:batch=4"
HEADER = ",".join(replica_table.FIELDS)
LINE = "zoo:a,k80:2,0,1.0,,2,64,64,1.5,True,1.0,2.0,3.5,40,1.0,placements/a.json,checked,2.5"


def read(path, text):
  path.write_text(text)
  return replica_table.read_rows(str(path))


def test_rows_come_back_without_a_line_that_a_kill_cut_off(tmp_path):
  rows = read(tmp_path / "replicas.csv", f"{HEADER}\n{LINE}\n{LINE[:20]}")
  assert [row["step_time_us"] for row in rows] == ["1.5"] and rows[0]["check"] == "checked"
  assert replica_table.table([{**row, "alone_us": ""} for row in rows]).count("| a |") == 1


def test_a_row_where_nothing_fits_does_not_end_the_others(tmp_path):
  config = replica_table.ReplicaTableConfig(
      (SPEC,), (_tiny_memory(tmp_path), "k80:2"), max_evaluations=20)
  rows = replica_table.evaluate_replicas(config, str(tmp_path / "out"))
  assert [row["fits"] for row in rows] == ["False", "True"]
  assert [bool(row["alone_us"]) for row in rows] == [False, True]
  read_again = replica_table.read_rows(str(tmp_path / "out" / "replicas.csv"))
  assert [{**row, "alone_us": rows[i]["alone_us"]} for i, row in enumerate(read_again)] == rows
  lines = replica_table.table(rows).split("\n")
  assert "nothing fits" in lines[2] and "nothing fits" not in lines[3]


def test_placement_alone_is_not_searched_again_for_a_row_that_is(tmp_path, monkeypatch):
  config = replica_table.ReplicaTableConfig((SPEC,), ("k80:2",), max_evaluations=20)
  first = replica_table.evaluate_replicas(config, str(tmp_path))
  os.remove(tmp_path / "replicas.csv")
  monkeypatch.setattr(replica_table.run, "place_with", None)
  again = replica_table.evaluate_replicas(config, str(tmp_path))
  assert again[0]["alone_us"] == first[0]["alone_us"] != ""
  with pytest.raises(TypeError):  # another budget
    replica_table.evaluate_replicas(
        dataclasses.replace(config, max_evaluations=30), str(tmp_path))


def _tiny_memory(folder):
  """A cluster file of two devices, hosts included, with a kilobyte each."""
  described = Cluster.parse("k80:2").to_json()
  for device in described["devices"]:
    device["memory_bytes"] = 1024
  path = folder / "tiny.json"
  path.write_text(json.dumps(described))
  return str(path)


@pytest.mark.parametrize("text, message", [
    ("", "has the columns"), ("a,b\n1,2\n", "has the columns"),
    (f"{HEADER}\n{LINE},more\n", "line 2 .* more or fewer fields"),
    (f"{HEADER}\n{LINE}\n{LINE[:20]}\n", "line 3 .* more or fewer fields"),
    (f"{HEADER}\n{LINE.replace('1.5', 'x')}\n", "line 2 .*could not convert"),
    (f"{HEADER}\n{LINE.replace('1.5', '')}\n", "line 2 .*could not convert"),
    (f"{HEADER}\n{'a' * 200_000}\n", "is no replicas.csv"),
])
def test_another_file_is_an_error(tmp_path, text, message):
  with pytest.raises(PlacetoError, match=message):
    read(tmp_path / "replicas.csv", text)


def test_a_pipe_is_refused(tmp_path):
  os.mkfifo(tmp_path / "replicas.csv")
  with pytest.raises(PlacetoError, match="it is a pipe"):
    replica_table.read_rows(str(tmp_path / "replicas.csv"))
