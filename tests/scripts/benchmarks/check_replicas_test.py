"""The checks of a table's replicas: each is made once, and stands in the rows that need it."""

import csv
import json

GRAPH = "rnnlm:layers=1:steps=2:hidden=16:batch=8:vocab=20"


def test_each_check_is_made_once_and_written_into_its_rows(run_program, tmp_path):
  table, out = tmp_path / "table.csv", tmp_path / "checks.json"
  table.write_text("graph,step,replicas,check\n" + "".join(
      f"{GRAPH},1.50,{form},\n" for form in ("2", "1", "2 mirrored", "2")))
  flags = (f"--table={table}", f"--out={out}", "--limit_s=600")
  out.write_text(json.dumps({f"{GRAPH}, 2 mirrored": {"text": "made before"}}))
  done = run_program("check_replicas", *flags)
  assert done.code == 0, done.err
  # One line: two rows are of the same replicas, and another was checked before.
  (line,) = done.out.strip().splitlines()
  assert line.startswith(f"{GRAPH}, 2, replicas 2, of 2, steps 5, ")
  with open(table, newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert [row["check"].partition(",")[0] for row in rows] == [
      "checked: 5 steps", "", "made before", "checked: 5 steps"]
  assert {row["step"] for row in rows} == {"1.50"}
  assert not run_program("check_replicas", *flags).out
